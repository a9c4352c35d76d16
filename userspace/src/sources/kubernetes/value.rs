//! Single values of objects: from what is written to a checked value, or what is wrong and what to do about it.

use crate::model::{InvalidName, ObjectRef, Pattern, Problem, ServerName};
use common::decide::server_name::NameError;
use common::maps::route::NAME_BYTES_MAX;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;

/// Most problems that are reported of one object; the rest is of the same kind.
pub(crate) const PROBLEMS_MAX: usize = 16;
/// Most characters of a value that are repeated in a problem.
const VALUE_CHARS_MAX: usize = 253;

/// What is wrong with a value, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
}

pub(crate) fn wrong(what: impl Into<String>, remedy: &'static str) -> Wrong {
    Wrong { what: what.into(), remedy }
}

/// Collects what is wrong with one object.
#[derive(Debug)]
pub(crate) struct Findings {
    object: Option<ObjectRef>,
    problems: Vec<Problem>,
}

impl Findings {
    pub(crate) fn of(object: Option<ObjectRef>) -> Self {
        Self { object, problems: Vec::new() }
    }

    /// A value that cannot be used. The rest of the object is.
    pub(crate) fn tell(&mut self, field: impl fmt::Display, value: impl fmt::Display, wrong: Wrong) {
        if self.problems.len() >= PROBLEMS_MAX {
            return;
        }
        let value: String = value.to_string().chars().take(VALUE_CHARS_MAX).collect();
        let mut problem = Problem::warning(field.to_string(), wrong.what, wrong.remedy).value(value);
        problem.object.clone_from(&self.object);
        self.problems.push(problem);
    }

    /// The value, or `None` and a problem.
    pub(crate) fn check<T>(
        &mut self,
        field: impl fmt::Display,
        value: impl fmt::Display,
        checked: Result<T, Wrong>,
    ) -> Option<T> {
        match checked {
            Ok(checked) => Some(checked),
            Err(wrong) => {
                self.tell(field, value, wrong);
                None
            }
        }
    }

    /// An object that is not shaped as its kind: it is treated as empty.
    pub(crate) fn body<B: Default>(&mut self, body: Result<B, String>) -> B {
        body.unwrap_or_else(|error| {
            let what = format!("does not have the shape of its kind: {error}");
            self.tell("spec", "", wrong(what, "write it as its CRD says; until then it is taken as empty"));
            B::default()
        })
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}

/// A TCP port.
pub(crate) fn port(number: i64) -> Result<u16, Wrong> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(wrong("is not a TCP port", "write a number from 1 to 65535")),
    }
}

/// An address that packets can be sent to: unicast, not loopback, not link-local IPv6, and IPv4 never in IPv6 form.
pub(crate) fn address(text: &str) -> Result<IpAddr, Wrong> {
    const WRITE: &str =
        "write an IPv4 or IPv6 address, such as 192.0.2.1 or 2001:db8::1, without prefix length or port";
    let Ok(address) = text.parse::<IpAddr>() else { return Err(wrong("is not an IP address", WRITE)) };
    let unusable = match address {
        _ if address != address.to_canonical() => Some("an IPv4 address in IPv6 form"),
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_multicast() => Some("a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("the broadcast address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address"),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    };
    match unusable {
        Some(which) => {
            Err(wrong(format!("is {which}"), "write a unicast address that other machines can reach"))
        }
        None => Ok(address),
    }
}

/// A network and its prefix length. Bits behind the prefix do not matter.
pub(crate) fn network(text: &str) -> Result<IpNet, Wrong> {
    const WRITE: &str = "write a network and its prefix length, such as 192.0.2.0/24 or 2001:db8::/32";
    let Ok(network) = text.parse::<IpNet>() else { return Err(wrong("is not a CIDR", WRITE)) };
    match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 && v6.network().to_ipv4_mapped().is_some() => {
            Err(wrong("is an IPv4 network in IPv6 form", "write it as IPv4, such as 192.0.2.0/24"))
        }
        IpNet::V4(_) | IpNet::V6(_) => Ok(network.trunc()),
    }
}

/// What a route or listener matches: a server name, or `*.` and one.
pub(crate) fn pattern(text: &str) -> Result<Pattern, Wrong> {
    if let Some(suffix) = text.strip_prefix("*.") {
        let suffix = server_name(suffix)?;
        // A label and its dot precede it.
        if suffix.as_str().len() > NAME_BYTES_MAX - 2 {
            return Err(wrong("leaves no room for a label before it in 253 bytes", "shorten it"));
        }
        return Ok(Pattern::Wildcard(suffix));
    }
    if text.contains('*') {
        return Err(wrong(
            "has a wildcard that is not its whole first label",
            "write *.example.com: * stands for one or more whole labels in front",
        ));
    }
    server_name(text).map(Pattern::Exact)
}

/// A server name.
pub(crate) fn server_name(text: &str) -> Result<ServerName, Wrong> {
    ServerName::new(text).map_err(|error| {
        let remedy = match error {
            InvalidName::Rule(NameError::Address) => {
                "remove it: clients that dial an address send no server name; use a listener of protocol TCP"
            }
            InvalidName::Rule(NameError::TooLong | NameError::LabelTooLong) => "shorten it",
            InvalidName::Rule(NameError::Byte(b':')) => {
                "write the name alone; the port belongs to the listener"
            }
            InvalidName::Rule(NameError::Empty | NameError::EmptyLabel | NameError::Byte(_))
            | InvalidName::NotIdna => "write a DNS name, such as api.example.com",
        };
        wrong(error.to_string(), remedy)
    })
}
