//! Rules that masquerade others' connections to our source addresses. The programs do not see the ports that conntrack
//! gives them, so one of ours may meet one of theirs at a backend.

use std::collections::HashSet;
use std::net::IpAddr;
use std::process::Command;

use common::maps::listener::ROLE_SOURCE;
use serde_json::Value;

use super::{Finding, Verdict, finding};
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::model::Node;

/// A rule that gives connections another source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    /// The family it applies to: IPv4 or IPv6; `None` = both.
    v4: Option<bool>,
    /// The address it gives; `None` = one of the device that the packet leaves by.
    address: Option<IpAddr>,
    /// First and last port that it gives; `None` = any.
    ports: Option<(u16, u16)>,
}

impl Rule {
    /// Whether it may give a connection this address, one of the node's if it is in `own`, and one of these ports.
    fn gives(&self, address: IpAddr, own: &HashSet<IpAddr>, (first, last): (u16, u16)) -> bool {
        self.v4.is_none_or(|v4| v4 == address.is_ipv4())
            && self.address.map_or_else(|| own.contains(&address), |given| given == address)
            && self.ports.is_none_or(|(from, to)| from <= last && first <= to)
    }
}

/// Reports source addresses of ours that rules of this node give to others' connections, too.
pub(super) fn look(pins: &Pins, node: &Node) -> Option<Finding> {
    const WHAT: &str = "masquerading";
    let maps = read::open(pins).ok()?;
    let settings = maps.settings.look_up(&0).ok().flatten()?;
    let mut sources = Vec::new();
    maps.addresses
        .walk(|address, role| {
            if role.flags & ROLE_SOURCE != 0 {
                sources.push(IpAddr::from(*address));
            }
        })
        .ok()?;
    sources.sort_unstable();
    let Some(rules) = rules() else {
        return Some(finding(
            Verdict::Note,
            WHAT,
            "not checked: neither `nft` nor `iptables-save` can be run here",
            "run it as root on the node",
        ));
    };
    let ports = (settings.source_port_first, settings.source_port_last);
    Some(judged(WHAT, &rules, &sources, &node.own, ports))
}

fn judged(
    what: &str,
    rules: &[Rule],
    sources: &[IpAddr],
    own: &HashSet<IpAddr>,
    ports: (u16, u16),
) -> Finding {
    let given = |source: &&IpAddr| rules.iter().any(|rule| rule.gives(**source, own, ports));
    let shared: Vec<String> = sources.iter().filter(given).map(ToString::to_string).collect();
    if shared.is_empty() {
        return finding(Verdict::Ok, what, "gives no connection a source address and port of ours", "");
    }
    let found =
        format!("may give others' connections ports {} to {} of {}", ports.0, ports.1, shared.join(", "));
    finding(
        Verdict::Warning,
        what,
        found,
        "source addresses of our own (`sourceAddresses`), or other ports for them: `masquerade to :PORTS`, `--to-ports`",
    )
}

/// Returns the rules of this network namespace; `None`: no program shows them.
fn rules() -> Option<Vec<Rule>> {
    let nft = said("nft", &["-j", "list", "ruleset"]).and_then(|text| serde_json::from_str(&text).ok());
    let saved = [("iptables-save", true), ("ip6tables-save", false)]
        .map(|(program, v4)| said(program, &["-t", "nat"]).map(|text| of_iptables(&text, v4)));
    if nft.is_none() && saved.iter().all(Option::is_none) {
        return None;
    }
    // nft shows a rule of iptables without its ports: they are asked of `iptables-save` where it runs.
    let with_iptables = saved.iter().any(Option::is_none);
    let mut rules = nft.map_or_else(Vec::new, |ruleset: Value| of_nft(&ruleset, with_iptables));
    rules.extend(saved.into_iter().flatten().flatten());
    Some(rules)
}

/// Runs a program and returns what it prints, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads `nft -j list ruleset`, with or without the rules of iptables. A rule may be in a chain that others lead to, so
/// all are read.
fn of_nft(ruleset: &Value, with_iptables: bool) -> Vec<Rule> {
    let rules = ruleset["nftables"].as_array().into_iter().flatten().map(|entry| &entry["rule"]);
    let statements = rules.flat_map(|rule| {
        let v4 = match rule["family"].as_str() {
            Some("ip") => Some(true),
            Some("ip6") => Some(false),
            _ => None,
        };
        rule["expr"].as_array().into_iter().flatten().map(move |statement| (v4, statement))
    });
    let read = |(v4, statement): (Option<bool>, &Value)| {
        if let Some(masquerade) = statement.get("masquerade") {
            return Some(Rule { v4, address: None, ports: ports_of_nft(&masquerade["port"]) });
        }
        if let Some(snat) = statement.get("snat") {
            // An address that is not written out, such as a range, may be any.
            let address = snat["addr"].as_str().and_then(|text| text.parse().ok());
            return Some(Rule { v4, address, ports: ports_of_nft(&snat["port"]) });
        }
        let is_target = with_iptables && statement["xt"]["name"] == "MASQUERADE";
        is_target.then_some(Rule { v4, address: None, ports: None })
    };
    statements.filter_map(read).collect()
}

/// Reads a port or a range of ports; anything else may be any port.
fn ports_of_nft(port: &Value) -> Option<(u16, u16)> {
    let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    match port["range"].as_array().map(Vec::as_slice) {
        Some([first, last]) => Some((number(first)?, number(last)?)),
        _ => number(port).map(|port| (port, port)),
    }
}

/// Reads `iptables-save -t nat`.
fn of_iptables(saved: &str, v4: bool) -> Vec<Rule> {
    let rule = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let behind = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        match behind("-j")? {
            "MASQUERADE" => {
                let ports = behind("--to-ports").and_then(ports_of_iptables);
                Some(Rule { v4: Some(v4), address: None, ports })
            }
            "SNAT" => {
                let to = behind("--to-source")?;
                let (address, ports) = match to.rsplit_once(':') {
                    Some((address, ports)) if v4 || address.ends_with(']') => (address, Some(ports)),
                    _ => (to, None),
                };
                let address = address.trim_matches(['[', ']']).parse().ok();
                Some(Rule { v4: Some(v4), address, ports: ports.and_then(ports_of_iptables) })
            }
            _ => None,
        }
    };
    saved.lines().filter(|line| line.starts_with("-A ")).filter_map(rule).collect()
}

fn ports_of_iptables(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PORTS: (u16, u16) = (1024, 29_999);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn rules_of_nft_are_read_with_their_ports() {
        let rule = |family: &str, statement: Value| json!({"rule": {"family": family, "chain": "post", "expr": [{"match": {}}, statement]}});
        let ruleset = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"chain": {"family": "inet", "name": "post", "hook": "postrouting"}},
            rule("inet", json!({"masquerade": null})),
            rule("ip", json!({"masquerade": {"port": {"range": [40_000, 50_000]}}})),
            rule("ip6", json!({"masquerade": {"port": 2_000, "flags": "random"}})),
            rule("ip", json!({"snat": {"family": "ip", "addr": "10.1.1.1", "port": {"range": [100, 200]}}})),
            rule("ip", json!({"xt": {"type": "target", "name": "MASQUERADE"}})),
            rule("ip", json!({"accept": null})),
        ]});
        let any = Rule { v4: None, address: None, ports: None };
        let native = [
            any,
            Rule { v4: Some(true), ports: Some((40_000, 50_000)), ..any },
            Rule { v4: Some(false), ports: Some((2_000, 2_000)), ..any },
            Rule { v4: Some(true), address: Some(address("10.1.1.1")), ports: Some((100, 200)) },
        ];
        assert_eq!(of_nft(&ruleset, false), native);
        assert_eq!(of_nft(&ruleset, true)[4..], [Rule { v4: Some(true), ..any }]);
        assert_eq!(of_nft(&json!({}), true), []);
    }

    #[test]
    fn rules_of_iptables_are_read_with_their_ports() {
        let saved = "*nat\n:POSTROUTING ACCEPT [0:0]\n\
            -A POSTROUTING -o eth0 -p tcp -j MASQUERADE --to-ports 1000-2000 --random-fully\n\
            -A KUBE-POSTROUTING -m comment --comment \"x y\" -j MASQUERADE --random-fully\n\
            -A POSTROUTING -j SNAT --to-source 10.1.1.1:7\n-A POSTROUTING -j RETURN\nCOMMIT\n";
        let any = Rule { v4: Some(true), address: None, ports: None };
        let expected = [
            Rule { ports: Some((1_000, 2_000)), ..any },
            any,
            Rule { address: Some(address("10.1.1.1")), ports: Some((7, 7)), ..any },
        ];
        assert_eq!(of_iptables(saved, true), expected);
        for (to, ports) in [("fd00::1", None), ("[fd00::1]:7-9", Some((7, 9)))] {
            let saved = format!("-A POSTROUTING -j SNAT --to-source {to}\n");
            let expected = Rule { v4: Some(false), address: Some(address("fd00::1")), ports };
            assert_eq!(of_iptables(&saved, false), [expected]);
        }
    }

    #[test]
    fn only_an_address_and_a_port_of_ours_are_warned_of() {
        let (ours, other) = (address("10.0.0.1"), address("10.0.0.9"));
        let own = HashSet::from([ours]);
        let any = Rule { v4: None, address: None, ports: None };
        let warns = |rule: Rule, sources: &[IpAddr]| {
            let verdict = judged("", &[rule], sources, &own, PORTS).verdict;
            assert!(matches!(verdict, Verdict::Ok | Verdict::Warning), "{verdict:?}");
            verdict == Verdict::Warning
        };
        assert!(warns(any, &[ours]) && warns(any, &[other, ours]));
        assert!(!warns(any, &[other]), "an address on no device");
        assert!(warns(Rule { address: Some(other), ..any }, &[other]));
        assert!(!warns(Rule { v4: Some(false), ..any }, &[ours]));
        assert!(warns(Rule { ports: Some((29_999, 60_000)), ..any }, &[ours]));
        assert!(!warns(Rule { ports: Some((30_000, 60_000)), ..any }, &[ours]));
        assert!(!warns(Rule { ports: Some((1, 1_023)), ..any }, &[ours]));
        let found = judged("masquerading", &[any], &[ours], &own, PORTS);
        assert_eq!(found.found, "may give others' connections ports 1024 to 29999 of 10.0.0.1");
    }
}
