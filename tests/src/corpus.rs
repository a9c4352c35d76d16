//! Recorded and adversarial ClientHellos, each with the verdicts that a router may reach.
//!
//! The files are not part of this tree. `VESTIBULE_FIXTURES` names the folder that holds `hellos/` and
//! `hellos-adversarial/`, each with a `manifest.json`. The default is `../shared/fixtures`, relative to the
//! workspace.

use anyhow::{Context, Result};
use common::wire::client_hello::Outcome;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// What a router does with a stream, named as in the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Route it by its server name.
    Route,
    /// It has no server name: use the default route, if there is one.
    NoSni,
    /// Wait for more bytes.
    NeedMore,
    /// Refuse it.
    Reject,
    /// Hand it over to a slower path; Vestibule has none.
    Punt,
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Name => Self::Route,
            Outcome::NoName => Self::NoSni,
            Outcome::NeedMore => Self::NeedMore,
            Outcome::NotTls | Outcome::Malformed | Outcome::TooLong | Outcome::NameInvalid => Self::Reject,
        }
    }
}

/// One stream and the verdicts allowed for it.
#[derive(Clone, Debug)]
pub struct Case {
    pub path: PathBuf,
    /// The stream, from the client's first byte.
    pub bytes: Vec<u8>,
    /// The allowed verdicts, the preferred one first.
    pub allowed: Vec<Verdict>,
    /// The only name the stream may be routed by, normalised; `None` if no name is right.
    pub name: Option<String>,
    /// Whether routing by any name would be a misroute.
    pub must_not_route: bool,
    /// Whether a real client sent exactly these bytes.
    pub real: bool,
}

impl Case {
    /// Returns what is wrong with this outcome; `None` if nothing is.
    pub fn objection(&self, outcome: Outcome, name: &[u8]) -> Option<String> {
        let verdict = Verdict::from(outcome);
        let file = self.path.display();
        if verdict == Verdict::Route && self.name.as_deref().map(str::as_bytes) != Some(name) {
            let name = name.escape_ascii();
            return Some(format!("{file}: MISROUTE to {name}, the name is {:?}", self.name));
        }
        if verdict == Verdict::Route && self.must_not_route {
            return Some(format!("{file}: MISROUTE, nothing may be routed"));
        }
        let allowed = &self.allowed;
        (!allowed.contains(&verdict)).then(|| format!("{file}: {outcome:?}, allowed are {allowed:?}"))
    }
}

/// Returns the folder of the fixtures, if it exists.
pub fn folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("VESTIBULE_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    folder.join("hellos/manifest.json").is_file().then_some(folder)
}

/// Returns every case of both manifests. Without the fixtures, returns `None` and prints a line to stderr.
pub fn cases() -> Result<Option<Vec<Case>>> {
    let Some(folder) = folder() else {
        eprintln!("SKIPPED: no hello fixtures; set VESTIBULE_FIXTURES to the folder that holds hellos/");
        return Ok(None);
    };
    let hellos = folder.join("hellos");
    let mut cases = Vec::new();
    let mut bases = HashMap::new();
    for entry in manifest::<Recorded>(&hellos)? {
        let file = entry.file.clone();
        let case = entry.case(&hellos)?;
        bases.insert(file, case.name.clone());
        cases.push(case);
    }
    let adversarial = folder.join("hellos-adversarial");
    for entry in manifest::<Derived>(&adversarial)? {
        cases.push(entry.case(&adversarial, &bases)?);
    }
    Ok(Some(cases))
}

/// Reads `manifest.json` in a folder.
fn manifest<T: DeserializeOwned>(folder: &Path) -> Result<Vec<T>> {
    let path = folder.join("manifest.json");
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Reads one stream.
fn stream(folder: &Path, file: &str) -> Result<(PathBuf, Vec<u8>)> {
    let path = folder.join(file);
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    Ok((path, bytes))
}

/// A hello as a real client sent it.
#[derive(Deserialize)]
struct Recorded {
    file: String,
    /// The name as on the wire.
    expected_sni: Option<String>,
}

impl Recorded {
    fn case(self, folder: &Path) -> Result<Case> {
        let (path, bytes) = stream(folder, &self.file)?;
        let (allowed, name) = match self.expected_sni.as_deref() {
            None => (Verdict::NoSni, None),
            Some(sni) => expected(sni),
        };
        Ok(Case { path, bytes, allowed: vec![allowed], name, must_not_route: name_free(allowed), real: true })
    }
}

/// Whether routing by a name would be wrong.
fn name_free(verdict: Verdict) -> bool {
    verdict != Verdict::Route
}

/// Returns the verdict and the normalised name for a name that a real client sent. Does not use the code
/// under test.
fn expected(sni: &str) -> (Verdict, Option<String>) {
    let bare = sni.strip_suffix('.').unwrap_or(sni);
    if bare.parse::<IpAddr>().is_ok() {
        return (Verdict::NoSni, None);
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let label = |label: &str| (1..=63).contains(&label.len());
    if bare.len() > 253 || !bare.chars().all(legal) || !bare.split('.').all(label) {
        return (Verdict::Reject, None);
    }
    (Verdict::Route, Some(bare.to_ascii_lowercase()))
}

/// A hello derived from a recorded one.
#[derive(Deserialize)]
struct Derived {
    file: String,
    verdict: Verdict,
    /// The name, normalised.
    name: Option<String>,
    /// The recorded hello that it was derived from.
    base: String,
    also_ok: Vec<Verdict>,
    must_not_route: bool,
}

impl Derived {
    fn case(self, folder: &Path, bases: &HashMap<String, Option<String>>) -> Result<Case> {
        let (path, bytes) = stream(folder, &self.file)?;
        let mut allowed = vec![self.verdict];
        allowed.extend(self.also_ok.into_iter().filter(|verdict| *verdict != Verdict::Punt));
        // If `Route` is only the second choice, the manifest has no name: it is the name of the recorded
        // hello.
        let second = allowed.iter().skip(1).any(|verdict| *verdict == Verdict::Route);
        let base = if second { bases.get(&self.base).cloned().flatten() } else { None };
        let name = self.name.or(base);
        Ok(Case { path, bytes, allowed, name, must_not_route: self.must_not_route, real: false })
    }
}
