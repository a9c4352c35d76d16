//! What an agent reports in the annotations of its Lease: each renewal is a report, and each report a renewal.

use std::collections::BTreeMap;

/// The version of the report. A reader that does not know it knows nothing of what the node holds.
///
/// To be raised with each new key of [`super::claim::ClaimSpec::policy`], each new field of a Claim or of one of its backends that agents
/// are to serve (as of an `address`, once one is asked for), and each new value of its `session_affinity` and of its protocol where it is
/// served, and, as long as agents from before 2026-12 may run, of its origin's kind, which later ones need not know: an agent of the release before does not serve such Claims, each of which is an exception. Beyond 100 of them a node counts as if it held nothing, and
/// `Programmed` of every object would turn `False` during an upgrade. Of nodes with another version of the report nothing is known, and
/// conditions stay as they are until all report the new one.
const REPORT_VERSION: (&str, &str) = ("vestibule.dev/report-version", "2");
/// The node's outputs hold every Claim up to this resourceVersion; 0: none is known.
const CLAIMS_VERSION: &str = "vestibule.dev/claims-version";
/// The beginning of the SHA-256 of the chart's file that is in effect.
const CONFIG: &str = "vestibule.dev/config-sha256";
/// Why the node's NodeState cannot be written. Missing while it can be, and in reports of former agents.
const UNWRITTEN: &str = "vestibule.dev/node-state-unwritten";
/// What the node serves though no Claim is known to it. Missing otherwise, and in reports of former agents; former controllers do not
/// read it.
const SAVED: &str = "vestibule.dev/serves-saved";
/// The most bytes of either.
const UNWRITTEN_BYTES_MAX: usize = 256;
const SAVED_BYTES_MAX: usize = 128;

/// The agent of this name was the node's last: its DaemonSet is gone, or does not select the node any more. Another agent of the node has
/// another name, so that even one of a former release, which leaves this as it is, takes it back.
const LEFT: &str = "vestibule.dev/left";

/// Says in a Lease's annotations that no agent follows this one, which holds the Lease.
pub fn leave(annotations: &mut BTreeMap<String, String>, holder: &str) {
    annotations.insert(LEFT.to_owned(), holder.to_owned());
}

/// Takes that back: an agent of the same Pod runs again.
pub fn come_back(annotations: &mut BTreeMap<String, String>) {
    annotations.remove(LEFT);
}

/// Whether a Lease says so of its holder.
pub fn has_left(annotations: &BTreeMap<String, String>, holder: &str) -> bool {
    annotations.get(LEFT).is_some_and(|left| left == holder)
}

/// What a node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Every Claim up to this resourceVersion; 0: none is known.
    pub claims_version: u64,
    /// The beginning of the SHA-256 of the chart's file that is in effect, in hexadecimal; empty: there is none.
    pub config: String,
    /// Why its NodeState cannot be written, so that nobody can know what it does not hold; empty: it can be.
    pub unwritten: String,
    /// What it serves though no Claim is known to it, such as `a saved state of 2026-11-21T10:00:00Z`; empty: nothing.
    pub saved: String,
}

impl LeaseReport {
    /// Returns as much of a reason for [`LeaseReport::unwritten`] as a Lease has: more would differ from what is read of it.
    pub(crate) fn unwritten_reason(why: &str) -> String {
        some(why, UNWRITTEN_BYTES_MAX)
    }

    /// Writes it into a Lease's annotations.
    pub fn write(&self, annotations: &mut BTreeMap<String, String>) {
        let (key, version) = REPORT_VERSION;
        annotations.insert(key.to_owned(), version.to_owned());
        annotations.insert(CLAIMS_VERSION.to_owned(), self.claims_version.to_string());
        annotations.insert(CONFIG.to_owned(), self.config.clone());
        let saved = some(&self.saved, SAVED_BYTES_MAX);
        for (key, text) in [(UNWRITTEN, Self::unwritten_reason(&self.unwritten)), (SAVED, saved)] {
            match text.as_str() {
                "" => drop(annotations.remove(key)),
                text => drop(annotations.insert(key.to_owned(), text.to_owned())),
            }
        }
    }

    /// The version in which a Lease's annotations report, if they do, and the one that is read.
    pub fn version(annotations: &BTreeMap<String, String>) -> (Option<&str>, &'static str) {
        let (key, version) = REPORT_VERSION;
        (annotations.get(key).map(String::as_str), version)
    }

    /// Reads it from a Lease's annotations. `None`: there is none, or of a version that is not known.
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let (key, version) = REPORT_VERSION;
        annotations.get(key).filter(|found| *found == version)?;
        let claims_version = annotations.get(CLAIMS_VERSION)?.parse().ok()?;
        let text = |key| annotations.get(key).cloned().unwrap_or_default();
        Some(Self { claims_version, config: text(CONFIG), unwritten: text(UNWRITTEN), saved: text(SAVED) })
    }
}

/// Returns as many bytes of a text.
fn some(text: &str, most: usize) -> String {
    // In JSON, a control character would be six bytes.
    text[..text.floor_char_boundary(most)].replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_another_version_is_not() {
        let report = LeaseReport { claims_version: 7, config: "0a".into(), ..LeaseReport::default() };
        let mut annotations = BTreeMap::new();
        assert_eq!(LeaseReport::read(&annotations), None);
        report.write(&mut annotations);
        assert_eq!(LeaseReport::read(&annotations), Some(report.clone()));
        let unwritten = LeaseReport { unwritten: "é".repeat(500), ..report.clone() };
        unwritten.write(&mut annotations);
        assert_eq!(LeaseReport::read(&annotations).unwrap().unwritten, "é".repeat(UNWRITTEN_BYTES_MAX / 2));
        let saved = LeaseReport { saved: "a saved state".into(), claims_version: 0, ..report.clone() };
        saved.write(&mut annotations);
        assert_eq!(LeaseReport::read(&annotations), Some(saved));
        report.write(&mut annotations);
        assert_eq!(LeaseReport::read(&annotations), Some(report));
        for (key, value) in [(REPORT_VERSION.0, "3"), (CLAIMS_VERSION, "many"), (CLAIMS_VERSION, "-1")] {
            let mut other = annotations.clone();
            other.insert(key.to_owned(), value.to_owned());
            assert_eq!(LeaseReport::read(&other), None, "{key}: {value}");
        }
    }
}
