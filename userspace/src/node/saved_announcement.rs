//! The file with what is announced, for a start before the API server answers: without it, a node would cease to answer for addresses that
//! its clients use.

use std::path::Path;

use super::disk::{self, DiskError};
use crate::model::Announcement;
use crate::sources::kubernetes::api::announcement::AnnouncementSpec;

/// The name of the file in the state folder.
const FILE: &str = "announcement";

/// The first line of the file. Any change of the format needs a new number.
const HEADING: &str = "vestibule announcement 1";

/// Writes it to the folder.
pub(super) fn write(folder: &Path, said: &Announcement) -> std::io::Result<()> {
    let content = serde_json::to_vec(&AnnouncementSpec::of(said)).map_err(std::io::Error::other)?;
    disk::write(&folder.join(FILE), HEADING, &content)
}

/// Reads it from the folder.
pub(super) fn read(folder: &Path) -> Result<Announcement, DiskError> {
    let content = disk::read(&folder.join(FILE), HEADING)?;
    let spec: AnnouncementSpec =
        serde_json::from_slice(&content).map_err(|_| DiskError::Damaged("it is not what was written"))?;
    spec.read().map_err(|_| DiskError::Damaged("it has what is no range of addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AnnouncementRule;
    use crate::model::announcement::Preferred;
    use crate::model::cluster::AddressRange;
    use std::time::Duration;

    #[test]
    fn what_is_saved_comes_back_and_what_is_damaged_does_not() {
        let folder = std::env::temp_dir().join(format!("vestibule-announcement-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(matches!(read(&folder), Err(DiskError::Missing)));
        let (first, last) = ("192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap());
        let said = Announcement {
            grace: Duration::from_secs(15),
            rebalance: Some(Duration::from_secs(600)),
            withdraws: true,
            members: vec!["a".into()],
            rules: vec![AnnouncementRule {
                addresses: vec![AddressRange { first, last }],
                preferred: vec![Preferred { weight: 60, nodes: vec!["a".into()] }],
                ..AnnouncementRule::default()
            }],
        };
        write(&folder, &said).unwrap();
        assert_eq!(read(&folder).unwrap(), said);
        for wrong in [&b"{}"[..], b"[", br#"{"agentGraceSeconds":1,"rules":[{"addresses":["x"]}]}"#] {
            disk::write(&folder.join(FILE), HEADING, wrong).unwrap();
            assert!(matches!(read(&folder), Err(DiskError::Damaged(_))));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
