//! `vestibule crds`.

use anyhow::Result;
use serde_json::Value;

use super::print;
use crate::sources::kubernetes::api::announcement::Announcement;
use crate::sources::kubernetes::api::claim::Claim;
use crate::sources::kubernetes::api::node_state::NodeState;

/// Prints the definitions of Vestibule's own kinds.
pub(super) fn show() -> Result<()> {
    let all = definitions()?.iter().map(|(_, definition)| text(definition)).collect::<Result<Vec<_>>>()?;
    print::line(&all.join("---\n").trim_end())
}

/// Returns the definitions, by the plural of their kinds.
fn definitions() -> Result<[(&'static str, Value); 3]> {
    Ok([
        ("announcements", Announcement::definition()?),
        ("claims", Claim::definition()?),
        ("nodestates", NodeState::definition()?),
    ])
}

fn text(definition: &Value) -> Result<String> {
    Ok(serde_saphyr::to_string(definition)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `VESTIBULE_BLESS=1`, writes the files.
    #[test]
    fn the_files_in_the_chart_are_up_to_date() {
        for (plural, definition) in definitions().unwrap() {
            let path =
                format!("{}/../deploy/charts/vestibule/files/{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
            let text = text(&definition).unwrap();
            if std::env::var_os("VESTIBULE_BLESS").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let file = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(file, text, "{plural}: run this test with VESTIBULE_BLESS=1");
        }
    }
}
