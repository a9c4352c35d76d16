//! `vestibule claims`.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::print::{self, Row};
use crate::controller::holders::{self, Holders};
use crate::controller::leader;

/// The time limit for the API server's answer: there may be ten thousand Claims.
const LIMIT: Duration = Duration::from_secs(30);
/// The number of nodes shown in a table. JSON contains all.
const SHOWN: usize = 3;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Show only those that some node does not hold.
    #[arg(long)]
    missing: bool,
    #[command(flatten)]
    shown: super::Shown,
}

/// Prints Claims with the nodes that hold them.
pub(super) fn show(asked: &Args) -> Result<()> {
    let variable = "POD_NAMESPACE";
    let namespace = std::env::var(variable).with_context(|| {
        format!(
            "environment variable {variable}: run it in a pod of the controller: kubectl -n NAMESPACE exec deploy/vestibule-controller -- \
             vestibule claims"
        )
    })?;
    let all = holders::read(&namespace, LIMIT).context("reading Claims, Leases and NodeStates")?;
    let wanted = all.iter().filter(|holders| !asked.missing || lacks(holders));
    let rows: Vec<Row> = wanted.map(row).collect();
    if let Some(waits) = leader::read(&namespace, LIMIT).ok().flatten().and_then(|leader| leader.unmarked) {
        // Not among the rows, which other programs read.
        eprintln!("not all Claims are written {waits}");
    }
    let headings = ["origin", "part", "tenant", ">granted", ">refused", ">nodes", "missing on"];
    print::rows(&headings, &rows, asked.shown.output)
}

/// Whether some node does not hold it, or there is none.
fn lacks(holders: &Holders) -> bool {
    holders.nodes == 0 || !holders.missing.is_empty()
}

fn row(holders: &Holders) -> Row {
    let Holders { origin, part, tenant, granted, refused, nodes, missing } = holders;
    let held = nodes - missing.len();
    let mut lacking: Vec<String> = missing
        .iter()
        .take(SHOWN)
        .map(|(node, why)| why.as_ref().map_or_else(|| node.clone(), |why| format!("{node} ({why})")))
        .collect();
    if missing.len() > SHOWN {
        lacking.push(format!("and {} more", missing.len() - SHOWN));
    }
    let all: Vec<_> = missing.iter().map(|(node, why)| json!({"node": node, "why": why})).collect();
    Row {
        cells: vec![
            origin.clone(),
            part.clone(),
            tenant.clone(),
            granted.to_string(),
            refused.to_string(),
            format!("{held}/{nodes}"),
            lacking.join(", "),
        ],
        json: json!({
            "origin": origin, "part": part, "tenant": tenant, "granted": granted, "refused": refused,
            "nodes": nodes, "missing": all,
        })
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_the_first_nodes_that_lack_a_claim() {
        let missing = |count: usize| (0..count).map(|node| (format!("n{node}"), None)).collect();
        let mut holders = Holders {
            origin: "TLSRoute a/b".to_owned(),
            part: "0".to_owned(),
            tenant: "a".to_owned(),
            granted: 2,
            refused: 0,
            nodes: 9,
            missing: missing(4),
        };
        assert_eq!(row(&holders).cells[5..], ["5/9", "n0, n1, n2, and 1 more"]);
        holders.missing = vec![("n0".to_owned(), Some("it was deleted".to_owned()))];
        assert_eq!(row(&holders).cells[5..], ["8/9", "n0 (it was deleted)"]);
        holders.missing = missing(0);
        assert_eq!(row(&holders).cells[5..], ["9/9", ""]);
        assert!(!lacks(&holders));
        holders.nodes = 0;
        assert!(lacks(&holders), "no agent lives");
    }
}
