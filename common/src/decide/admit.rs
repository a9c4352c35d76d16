//! Decides whether a route takes one more connection of a client, before a backend is picked: first by the client's
//! address ([`is_admitted`]), then by what the route and the client have already. A new bound is one more element of [`rules`].

use super::tables::{Tables, stable};
use crate::maps::address::Address;
use crate::maps::policy::PolicyKey;
use crate::maps::route::Route;
use crate::maps::settings::Settings;
use crate::reason::Reason;

/// Whether a policy admits a client; 0 is the policy that admits everybody.
#[inline(always)]
pub fn is_admitted(tables: &impl Tables, policy: u16, client: &Address) -> bool {
    policy == 0 || tables.is_within(&PolicyKey::of_client(policy, client))
}

/// Returns the policy of a route; 0: there is none, or no such route.
///
/// Err: nothing can be said now; the sender's repetition is decided from scratch.
#[inline(always)]
pub fn policy(tables: &impl Tables, route: u32) -> Result<u16, Reason> {
    let mut record = Route::zeroed();
    Ok(if stable(&mut record, |to| tables.route(route, to))? { record.policy } else { 0 })
}

/// What the route and the client have already.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Flows of the route.
    pub route_flows: u32,
    /// Flows of the client's source (IPv4 /32, IPv6 /64) to the route.
    pub share_flows: u32,
    /// Hellos of the client's source that wait for a backend of the route.
    pub share_connecting: u32,
}

/// A rule: a count and its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Why a client is refused.
    pub reason: Reason,
    /// What there is already.
    pub count: u32,
    /// From this count on, clients are refused.
    pub most: u32,
}

impl Rule {
    /// Whether it refuses the client.
    #[inline(always)]
    pub const fn refuses(&self) -> bool {
        self.count >= self.most
    }
}

/// Returns all rules, in the order in which they are applied.
#[inline(always)]
pub const fn rules(held: &Held, settings: &Settings) -> [Rule; 3] {
    [
        Rule { reason: Reason::AdmitRouteFull, count: held.route_flows, most: settings.route_flows_max },
        Rule { reason: Reason::AdmitSourceFull, count: held.share_flows, most: settings.share_flows_max },
        Rule {
            reason: Reason::AdmitConnecting,
            count: held.share_connecting,
            most: settings.share_connecting_max,
        },
    ]
}

/// Admits a connection. Err: the client is refused for this reason.
#[inline(always)]
pub const fn admit(held: &Held, settings: &Settings) -> Result<(), Reason> {
    let rules = rules(held, settings);
    let mut next = 0;
    while next < rules.len() {
        if rules[next].refuses() {
            return Err(rules[next].reason);
        }
        next += 1;
    }
    Ok(())
}

/// Returns a count as it is read from a map. The CPU that counts one down below zero corrects it at once; until then it
/// is zero.
#[inline(always)]
pub const fn count(stored: u32) -> u32 {
    if stored > i32::MAX as u32 { 0 } else { stored }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Settings = Settings {
        route_flows_max: 1_000,
        share_flows_max: 10,
        share_connecting_max: 5,
        ..Settings::zeroed()
    };

    fn verdict(route_flows: u32, share_flows: u32) -> Result<(), Reason> {
        admit(&Held { route_flows, share_flows, share_connecting: 4 }, &BOUNDS)
    }

    #[test]
    fn each_bound_refuses_from_its_count_on() {
        assert_eq!(verdict(0, 0), Ok(()));
        assert_eq!(verdict(999, 9), Ok(()));
        assert_eq!(verdict(1_000, 9), Err(Reason::AdmitRouteFull));
        assert_eq!(verdict(999, 10), Err(Reason::AdmitSourceFull));
        assert_eq!(verdict(u32::MAX, u32::MAX), Err(Reason::AdmitRouteFull), "the first rule that refuses");
        let held = Held { share_connecting: 5, ..Held::default() };
        assert_eq!(admit(&held, &BOUNDS), Err(Reason::AdmitConnecting));
    }

    #[test]
    fn the_rules_say_what_they_compare() {
        let rules = rules(&Held { route_flows: 7, share_flows: 10, share_connecting: 2 }, &BOUNDS);
        let shown = rules.map(|rule| (rule.reason, rule.count, rule.most, rule.refuses()));
        assert_eq!(
            shown,
            [
                (Reason::AdmitRouteFull, 7, 1_000, false),
                (Reason::AdmitSourceFull, 10, 10, true),
                (Reason::AdmitConnecting, 2, 5, false)
            ]
        );
    }

    #[test]
    fn a_count_below_zero_is_zero() {
        assert_eq!([0, 1, i32::MAX as u32].map(count), [0, 1, i32::MAX as u32]);
        assert_eq!([u32::MAX, 1 << 31].map(count), [0, 0]);
    }
}
