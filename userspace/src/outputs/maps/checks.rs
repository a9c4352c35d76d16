//! What keeps a configuration from being carried out on this node.

use std::collections::BTreeSet;

use super::devices::Chosen;
use crate::model::{Desired, Node, Problem, Settings};
use crate::net::sysctl::{self, ForwardingOff};
use crate::outputs::StartError;

/// Returns the problems of the node's own network.
pub(super) fn node_problems(node: &Node, chosen: &Chosen, desired: &Desired) -> Vec<Problem> {
    let remedy = "name another device in the chart's `devices`, or none to follow the routes";
    let devices = chosen.unusable.iter().chain(&chosen.beyond);
    let mut problems: Vec<Problem> = devices.map(|what| Problem::warning("devices", what, remedy)).collect();
    if let Err(error) = check_forwarding(node, &chosen.devices, desired) {
        problems.push(Problem::error(
            "",
            error.to_string(),
            "let the node's own settings say so at every boot, too",
        ));
    }
    problems
}

/// Returns an error for each size that changed, since maps keep the sizes they were created with.
pub(super) fn size_changes(before: &Settings, after: &Settings) -> Vec<Problem> {
    let sizes = [
        ("maxFlows", before.max_flows, after.max_flows),
        ("maxNames", before.max_names, after.max_names),
        ("maxHellos", before.max_hellos, after.max_hellos),
    ];
    let changed = sizes.into_iter().filter(|(_, before, after)| before != after);
    changed
        .map(|(setting, before, after)| {
            Problem::error(
                format!("settings.{setting}"),
                format!("cannot change from {before} while the maps are pinned"),
                "put it back, or `vestibule detach` (which ends all connections) and start again",
            )
            .value(after)
        })
        .collect()
}

pub(super) fn refuse_errors(problems: &[Problem]) -> Result<(), StartError> {
    let errors: Vec<Problem> = problems.iter().filter(|problem| problem.is_error()).cloned().collect();
    if errors.is_empty() { Ok(()) } else { Err(StartError::Problems(errors)) }
}

pub(super) fn check_forwarding(
    node: &Node,
    devices: &BTreeSet<u32>,
    desired: &Desired,
) -> Result<(), ForwardingOff> {
    let listening = desired.listeners.iter().flat_map(|listener| &listener.addresses);
    let v4 = listening.clone().any(|address| address.is_ipv4());
    let v6 = listening.clone().any(|address| address.is_ipv6());
    for index in devices {
        sysctl::forwarding(&node.name(*index), v4, v6)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_changed_size_is_refused_by_field_and_value() {
        let before = Settings::default();
        assert!(size_changes(&before, &before).is_empty());
        let after = Settings { max_names: 7, idle_timeout: Duration::from_secs(9), ..Settings::default() };
        let problems = size_changes(&before, &after);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!((problem.field.as_str(), problem.value.as_str()), ("settings.maxNames", "7"));
        assert!(problem.is_error() && problem.remedy.contains("detach"));
    }
}
