//! Checks single values of the file. Returns the value, or what is wrong with it and the remedy.

use crate::model::{Affinity, InvalidName, Pattern, ServerName, TrafficPolicy};
use common::decide::route_key::SUFFIX_BYTES_MAX;
use common::decide::server_name::{NameError, RESERVED};
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What is wrong with a value, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) what: String,
    pub(super) remedy: String,
}

pub(super) fn wrong<T>(what: impl Into<String>, remedy: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { what: what.into(), remedy: remedy.into() })
}

/// Checks the name of a listener or route.
pub(super) fn object_name(text: &str) -> Result<(), Wrong> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'/' | b'-');
    if text.is_empty() {
        return wrong("is empty", "give it a name");
    }
    if text.len() > common::maps::route::LABEL_BYTES_MAX {
        return wrong(format!("is longer than {} bytes", common::maps::route::LABEL_BYTES_MAX), "shorten it");
    }
    if let Some(strange) = text.chars().find(|c| !u8::try_from(*c).is_ok_and(allowed)) {
        return wrong(
            format!("holds {strange:?}"),
            "use letters (A-Z, a-z), digits, '.', '_', '/' and '-' only",
        );
    }
    Ok(())
}

/// Parses an address that packets can be sent to or from: unicast, not loopback, not IPv4-mapped IPv6.
pub(super) fn address(text: &str) -> Result<IpAddr, Wrong> {
    let Ok(address) = text.parse::<IpAddr>() else {
        let remedy = if text.contains('/') {
            "write the address without a prefix length"
        } else if text.starts_with('[') || text.parse::<std::net::SocketAddr>().is_ok() {
            "write the address without brackets and port; the port has its own field"
        } else if text.contains('%') {
            "write a global or unique local address, without a zone"
        } else {
            "write an IPv4 or IPv6 address, such as \"192.0.2.1\" or \"2001:db8::1\"; names are not resolved"
        };
        return wrong("is not an IP address", remedy);
    };
    if address.is_unspecified() {
        return wrong("is the unspecified address", "write the address itself");
    }
    if address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast()) {
        return wrong("is a multicast or broadcast address", "write a unicast address");
    }
    if address.is_loopback() {
        return wrong("is a loopback address", "write an address that other machines can reach");
    }
    if let IpAddr::V6(v6) = address {
        if let Some(v4) = v6.to_ipv4_mapped() {
            return wrong("is an IPv4 address in IPv6 form", format!("write \"{v4}\""));
        }
        if v6.is_unicast_link_local() {
            return wrong("is a link-local address", "write a global or unique local address");
        }
    }
    Ok(address)
}

/// Parses a CIDR or a single address.
pub(super) fn block(text: &str) -> Result<IpNet, Wrong> {
    if !text.contains('/') {
        return address(text).map(IpNet::from);
    }
    let Ok(block) = text.parse::<IpNet>() else {
        return wrong("is not a CIDR", "write a network and its prefix length, such as \"192.0.2.0/24\"");
    };
    if block.addr() != block.network() {
        return wrong("names an address inside its network", format!("write \"{}\"", block.trunc()));
    }
    Ok(block)
}

/// Parses a range of clients: as [`block`], but never IPv4 addresses in IPv6 form.
pub(super) fn source_range(text: &str) -> Result<IpNet, Wrong> {
    match block(text)? {
        IpNet::V6(v6) if v6.prefix_len() >= 96 && v6.network().to_ipv4_mapped().is_some() => {
            wrong("is an IPv4 network in IPv6 form", "write it as IPv4, such as \"192.0.2.0/24\"")
        }
        range => Ok(range),
    }
}

/// Parses `externalTrafficPolicy`, in the terms of a Kubernetes Service.
pub(super) fn traffic(text: &str) -> Result<TrafficPolicy, Wrong> {
    match text {
        "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        _ => wrong(
            "is not a traffic policy",
            "write Local (backends on this node, which see the client's address) or Cluster",
        ),
    }
}

/// Parses `sessionAffinity`, in the words of a Kubernetes Service.
pub(super) fn affinity(text: &str) -> Result<Affinity, Wrong> {
    match text {
        "None" => Ok(Affinity::None),
        "ClientIP" => Ok(Affinity::ClientIp),
        _ => wrong("is not an affinity", "write ClientIP (all connections of an address) or None"),
    }
}

/// Checks a TCP port.
pub(super) fn port(number: i64) -> Result<u16, Wrong> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => wrong("is not a TCP port", "write a number from 1 to 65535"),
    }
}

/// Parses a number with a unit: `25h`, `10s`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, Wrong> {
    const REMEDY: &str =
        "write a whole number and one of ms, s, m, h, d, such as \"500ms\", \"10s\" or \"25h\"";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if digits != 0 && unit.is_empty() {
        return wrong("has no unit", REMEDY);
    }
    let unit_ms: u64 = match unit.trim_start() {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return wrong("is not a duration", REMEDY),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)) {
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => wrong("is not a duration", REMEDY),
    }
}

/// Parses the first and the last port: `1024-29999`.
pub(super) fn port_range(text: &str) -> Result<(u16, u16), Wrong> {
    const REMEDY: &str = "write the first and the last port, such as \"1024-29999\", 1024 or higher";
    let parsed = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
    match parsed {
        None => wrong("is not a range of ports", REMEDY),
        Some((first, last)) if first > last => wrong("ends before it begins", REMEDY),
        Some((first, _)) if first < 1024 => wrong("holds ports below 1024", REMEDY),
        Some(range) => Ok(range),
    }
}

/// Parses what a route matches: a server name, or `*.` and a server name.
pub(super) fn pattern(text: &str) -> Result<Pattern, Wrong> {
    if let Some(suffix) = text.strip_prefix("*.") {
        let suffix = server_name(suffix)?;
        if suffix.as_str().len() > SUFFIX_BYTES_MAX {
            return wrong("leaves no room for a label before it in 253 bytes", "shorten it");
        }
        return Ok(Pattern::Wildcard(suffix));
    }
    if text.contains('*') {
        return wrong(
            "has a wildcard that is not its whole first label",
            "write \"*.example.com\": '*' stands for one or more whole labels in front",
        );
    }
    let name = server_name(text)?;
    if RESERVED.contains(&name.as_str()) {
        return wrong(
            "is a name of every cluster's own API server, which nobody may claim",
            "remove it; use a name of your own domain",
        );
    }
    Ok(Pattern::Exact(name))
}

fn server_name(text: &str) -> Result<ServerName, Wrong> {
    ServerName::new(text).map_err(|error| Wrong {
        what: error.to_string(),
        remedy: match error {
            InvalidName::Rule(NameError::Address) => {
                "remove it: clients that dial an address send no server name; use defaultRoute or a TCP listener"
            }
            InvalidName::Rule(NameError::TooLong | NameError::LabelTooLong) => "shorten it",
            InvalidName::Rule(NameError::Byte(b':')) => "write the name alone; the port belongs to the listener",
            InvalidName::Rule(NameError::Empty | NameError::EmptyLabel | NameError::Byte(_))
            | InvalidName::NotIdna => "write a DNS name, such as \"api.example.com\"",
        }
        .to_owned(),
    })
}

/// Checks a device's name by the kernel's rules: 1 to 15 bytes, without white space, '/' and ':'.
pub(super) fn device(text: &str) -> Result<Arc<str>, Wrong> {
    let strange = |c: char| c.is_whitespace() || matches!(c, '/' | ':');
    if text.is_empty() || text.len() > 15 || text.contains(strange) || matches!(text, "." | "..") {
        return wrong("is not a device's name", "write a name that `ip link` shows, such as \"eth0\"");
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> String {
        pattern(text).map(|p| p.to_string()).unwrap_or_else(|w| format!("{}; {}", w.what, w.remedy))
    }

    #[test]
    fn patterns_are_normalised() {
        assert_eq!(ok("Api.Example.COM."), "api.example.com");
        assert_eq!(ok("*.Bücher.example"), "*.xn--bcher-kva.example");
        assert_eq!(ok("a_b-c.1"), "a_b-c.1");
        assert_eq!(ok(&format!("*.{}", "a.".repeat(125) + "b")).len(), 2 + 251);
        assert_eq!(pattern("*.x").unwrap(), Pattern::Wildcard(ServerName::new("x").unwrap()));
    }

    #[test]
    fn what_no_client_can_ask_for_is_refused() {
        for text in [
            "",
            ".",
            "*",
            "*.",
            "a..b",
            ".a",
            "a b",
            "*x.com",
            "a.*.com",
            "10.0.0.1",
            "::1",
            "a:443",
            "[::1]",
            "kubernetes",
            "Kubernetes.Default.SVC.cluster.local.",
            "xn--\u{0}",
            "*.10.0.0.1",
        ] {
            assert!(pattern(text).is_err(), "{text:?} gave {:?}", pattern(text));
        }
        assert!(pattern(&"a".repeat(64)).is_err());
        assert!(pattern(&("a.".repeat(126) + "bc")).is_err());
        assert!(pattern(&format!("*.{}b", "a.".repeat(126))).is_err());
        assert!(pattern("*.svc.cluster.local").is_ok());
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("25h"), Ok(Duration::from_secs(90_000)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(duration("10 s"), Ok(Duration::from_secs(10)));
        for text in
            ["", "10", "s", "-1s", "1.5s", "1h30m", "99999999999999999999s", "18446744073709551615d", "1µs"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_and_ranges() {
        assert_eq!(port_range("1024-29999"), Ok((1024, 29_999)));
        assert_eq!(port_range("2000 - 2000"), Ok((2000, 2000)));
        for text in ["", "1024", "1-2-3", "3000-2000", "1-1023", "1024-65536", "a-b"] {
            assert!(port_range(text).is_err(), "{text}");
        }
        assert!(port(0).is_err() && port(65_536).is_err() && port(-1).is_err());
        assert_eq!(port(65_535), Ok(65_535));
    }

    #[test]
    fn addresses_are_those_of_hosts() {
        assert!(address("10.97.0.10").is_ok() && address("fd97::10").is_ok());
        for text in [
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:10.0.0.1",
            "fe80::1",
            "10.0.0.0/8",
            "10.0.0.1:443",
            "[fd97::10]",
            "fe80::1%eth0",
            "api.example.com",
            "",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
