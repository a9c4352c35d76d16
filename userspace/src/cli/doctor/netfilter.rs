//! Rules of netfilter that packets sent by our programs pass by: `bpf_redirect` goes from device to device, past the hooks
//! of forwarded packets.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{Finding, Verdict, finding};

/// The hooks that a forwarded packet goes through, and one that our programs send does not: TCX programs run before ingress,
/// and the kernel takes what they redirect past egress.
const HOOKS: [&str; 5] = ["ingress", "prerouting", "forward", "postrouting", "egress"];

/// Lists of the tables of the older iptables, which nft does not show.
const LEGACY: [&str; 2] = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];

/// Reports the rules that do not see what our programs send.
pub(super) fn look() -> Vec<Finding> {
    let mut findings = match listed() {
        Ok(chains) => judged(&chains),
        Err(why) => vec![finding(
            Verdict::Note,
            "netfilter",
            format!("not checked: {why}"),
            "rules in ingress, prerouting, forward, postrouting and egress do not see what our programs send",
        )],
    };
    for path in LEGACY {
        let names = fs::read_to_string(path).unwrap_or_default();
        if !names.trim().is_empty() {
            let tables = names.split_whitespace().collect::<Vec<_>>().join(", ");
            findings.push(finding(
                Verdict::Note,
                format!("iptables of {path}"),
                format!("tables not read: {tables}"),
                REMEDY,
            ));
        }
    }
    findings
}

const REMEDY: &str =
    "do not see what our programs send: filter in front of the node or at the backends (README, Limits)";

/// A chain at a hook.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    hook: String,
    name: String,
    drops: bool,
    rules: usize,
}

/// Returns the chains at hooks, or why they are not known.
fn listed() -> Result<Vec<Chain>, String> {
    let output = Command::new("nft").args(["-j", "list", "ruleset"]).output();
    let output = output.map_err(|error| format!("`nft` does not run here: {error}"))?;
    if !output.status.success() {
        return Err(format!("`nft`: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let ruleset = serde_json::from_slice(&output.stdout).map_err(|error| format!("`nft`: {error}"))?;
    Ok(chains(&ruleset))
}

/// Reads the answer of `nft -j list ruleset` (libnftables-json(5)).
fn chains(ruleset: &Value) -> Vec<Chain> {
    let objects = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let key = |value: &Value, chain: &str| {
        format!("{} {} {}", text(value, "family"), text(value, "table"), text(value, chain))
    };
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for rule in objects.iter().filter_map(|object| object.get("rule")) {
        *rules.entry(key(rule, "chain")).or_default() += 1;
    }
    let based =
        objects.iter().filter_map(|object| object.get("chain")).filter(|chain| chain["hook"].is_string());
    based
        .map(|chain| {
            let name = key(chain, "name");
            Chain {
                hook: text(chain, "hook"),
                drops: chain["policy"] == "drop",
                rules: rules.get(&name).copied().unwrap_or(0),
                name,
            }
        })
        .collect()
}

fn judged(chains: &[Chain]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for hook in HOOKS {
        let passed_by: Vec<String> = chains
            .iter()
            .filter(|chain| chain.hook == hook && (chain.drops || chain.rules > 0))
            .map(|chain| {
                let policy = if chain.drops { ", policy drop" } else { "" };
                format!("{}: {} rules{policy}", chain.name, chain.rules)
            })
            .collect();
        if !passed_by.is_empty() {
            let what = format!("netfilter {hook}");
            findings.push(finding(Verdict::Note, what, passed_by.join("; "), REMEDY));
        }
    }
    if findings.is_empty() {
        findings.push(finding(Verdict::Ok, "netfilter", "no rules for forwarded packets", ""));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chains_with_rules_or_a_policy_are_reported_by_their_hook() {
        let base = |table: &str, name: &str, hook: &str, policy: &str| json!({"chain": {"family": "inet", "table": table, "name": name, "hook": hook, "policy": policy}});
        let rule =
            |table: &str, chain: &str| json!({"rule": {"family": "inet", "table": table, "chain": chain}});
        let ruleset = json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            base("a", "fwd", "forward", "drop"),
            base("a", "empty", "forward", "accept"),
            base("a", "in", "input", "drop"),
            base("b", "fwd", "postrouting", "accept"),
            base("c", "all", "ingress", "drop"),
            base("c", "out", "egress", "accept"),
            {"chain": {"family": "inet", "table": "b", "name": "called"}},
            rule("b", "fwd"), rule("b", "fwd"), rule("b", "called"), rule("a", "in"), rule("c", "out"),
        ]});
        let findings = judged(&chains(&ruleset));
        let found: Vec<_> = findings.iter().map(|one| (one.what.as_str(), one.found.as_str())).collect();
        assert_eq!(
            found,
            [
                ("netfilter ingress", "inet c all: 0 rules, policy drop"),
                ("netfilter forward", "inet a fwd: 0 rules, policy drop"),
                ("netfilter postrouting", "inet b fwd: 2 rules"),
                ("netfilter egress", "inet c out: 1 rules"),
            ]
        );
        assert_eq!(judged(&[])[0].verdict, Verdict::Ok);
        assert_eq!(chains(&json!({})), []);
    }
}
