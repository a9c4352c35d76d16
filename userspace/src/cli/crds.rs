//! `vestibule crds`.

use anyhow::Result;

use super::print;
use crate::sources::kubernetes::api::node_state::NodeState;

/// Prints the definitions of Vestibule's own kinds.
pub(super) fn show() -> Result<()> {
    print::line(&text()?.trim_end())
}

fn text() -> Result<String> {
    Ok(serde_saphyr::to_string(&NodeState::definition()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_chart_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds/nodestates.yaml");
        let file = std::fs::read_to_string(path).unwrap();
        assert_eq!(file, text().unwrap(), "run `vestibule crds > deploy/crds/nodestates.yaml`");
    }
}
