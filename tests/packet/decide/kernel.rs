//! The loaded programs: maps are written as the daemon writes them, and connections dialled packet by packet.

use std::net::SocketAddr;

use common::decide::route_key;
use common::maps::event::RouteCounters;
use common::maps::name;
use common::maps::policy::{ADMIT, PolicyKey, PolicyRange};
use common::maps::route::{NameKey, NameRoute, SuffixKey};
use common::reason::Reason;
use tests::packet::{Segment, flag, segment};
use tests::program::{Outcome, Pod, Programs, Sizes, verdict};
use tests::world::Device;
use userspace::plan::Change;
use userspace::plan::change::{name_key, one_label_key, suffix_key};
use zerocopy::IntoBytes;

use super::tables::neighbours;

const ISN: u32 = 0xffff_ff00;

/// One outcome of a connection attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// A SYN went to this backend.
    Backend(SocketAddr),
    /// Refused, for this reason.
    Refused(Reason),
}

#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) programs: Programs,
}

impl Kernel {
    pub(super) fn new() -> Self {
        let programs = Programs::with_sizes(Sizes { names: 4096, ..Sizes::default() });
        let programs = programs.expect("the programs load");
        programs.world.node.ip(&neighbours()).expect("`ip` takes the commands");
        Self { programs }
    }

    /// Carries out one write if it is to a map that packets look up.
    pub(super) fn apply(&mut self, change: &Change) {
        let p = &mut self.programs;
        match change {
            Change::PutAddress(key, role) => p.insert(name::ADDRESSES, *key, *role),
            Change::DeleteAddress(key) => self.forget::<_, u32>(name::ADDRESSES, *key),
            Change::PutListener(key, value) => p.insert(name::LISTENERS, *key, *value),
            Change::DeleteListener(key) => self.forget::<_, [u8; 16]>(name::LISTENERS, *key),
            Change::PutName(listener, name, value) => {
                let Some(key) = name_key(*listener, name) else { return };
                self.put_name(&key, *value);
            }
            Change::PutOneLabel(listener, suffix, value) => {
                let Some(key) = one_label_key(*listener, suffix) else { return };
                self.put_name(&key, *value);
            }
            Change::DeleteName(key) if route_key::is_short(key.short.length) => {
                self.forget::<_, NameRoute>(name::ROUTES_EXACT, key.short);
            }
            Change::DeleteName(key) => self.forget::<_, NameRoute>(name::ROUTES_LONG, **key),
            Change::PutWildcard(listener, suffix, value) => {
                let Some(key) = suffix_key(*listener, suffix) else { return };
                p.insert_prefix(name::ROUTES_WILDCARD, key.prefix_bits, data(&key), *value);
            }
            Change::DeleteWildcard(key) => {
                p.remove_prefix::<256, NameRoute>(name::ROUTES_WILDCARD, key.prefix_bits, data(key));
            }
            Change::PutPolicy(key) => {
                p.insert_prefix(name::POLICIES, key.prefix_bits, range(key), PolicyRange { action: ADMIT });
            }
            Change::DeletePolicy(key) => {
                p.remove_prefix::<20, PolicyRange>(name::POLICIES, key.prefix_bits, range(key));
            }
            Change::PutRoute(id, value) => p.insert(name::ROUTES, *id, *value),
            Change::DeleteRoute(id) => self.forget::<_, [u8; 32]>(name::ROUTES, *id),
            Change::PutPage(key, value) => p.insert(name::MAGLEV, *key, **value),
            Change::DeletePage(key) => self.forget::<_, [u8; 128]>(name::MAGLEV, *key),
            Change::PutMember(key, value) => p.insert(name::MEMBERS, *key, *value),
            Change::DeleteMember(key) => self.forget::<_, u32>(name::MEMBERS, *key),
            Change::PutBackend(id, value) => p.insert(name::BACKENDS, *id, *value),
            Change::DeleteBackend(id) => self.forget::<_, [u8; 48]>(name::BACKENDS, *id),
            Change::PutRouteCounters(id) => p.insert(name::ROUTE_COUNTERS, *id, RouteCounters::zeroed()),
            Change::DeleteRouteCounters(id) => self.forget::<_, RouteCounters>(name::ROUTE_COUNTERS, *id),
            // Packets do not read the first three. The tests keep the settings for their map sizes, and leave
            // no connection open.
            Change::PutIds(_)
            | Change::PutLabel(..)
            | Change::DeleteLabel(_)
            | Change::PutSettings(_)
            | Change::Settle
            | Change::Reset(_) => {}
        }
    }

    fn put_name(&mut self, key: &NameKey, value: NameRoute) {
        if route_key::is_short(key.short.length) {
            self.programs.insert(name::ROUTES_EXACT, key.short, value);
        } else {
            self.programs.insert(name::ROUTES_LONG, *key, value);
        }
    }

    /// Deletes an entry; a missing one is no error.
    fn forget<K: Pod, V: Pod>(&mut self, map: &str, key: K) {
        if self.programs.entry::<K, V>(map, key).is_some() {
            self.programs.remove::<K, V>(map, key);
        }
    }

    /// Dials a TLS listener with a hello in one segment. Each dialled backend refuses, up to `refusals` of
    /// them. Returns each outcome in order. Nothing of the connection remains.
    pub(super) fn tls(
        &mut self,
        client: SocketAddr,
        vip: SocketAddr,
        hello: &[u8],
        refusals: usize,
    ) -> Vec<Met> {
        let syn = self.client_sends(&plain(client, vip).syn(ISN).mss(1440));
        let [(Reason::SynAnswered, 1)] = syn.counted[..] else { return vec![met(&syn)] };
        let cookie = Segment::parse(&syn.packet).expect("a SYN-ACK").seq;
        let at = |offset: usize| {
            let seq = ISN.wrapping_add(1).wrapping_add(offset as u32);
            plain(client, vip).seq(seq).ack(cookie.wrapping_add(1))
        };
        let mut outcome = self.client_sends(&at(0).payload(hello));
        let mut all = vec![met(&outcome)];
        while let (Some(Met::Backend(_)), true) = (all.last(), all.len() <= refusals) {
            outcome = self.refuse(&outcome, ISN.wrapping_add(1));
            all.push(met(&outcome));
        }
        if let Some(Met::Backend(_)) = all.last() {
            let reset = self.client_sends(&at(hello.len()).rst());
            assert_eq!(reset.counted, [(Reason::HelloReset, 1)]);
        }
        all
    }

    /// Dials a TCP listener, whose backend then refuses.
    pub(super) fn tcp(&mut self, client: SocketAddr, vip: SocketAddr) -> Met {
        let outcome = self.client_sends(&plain(client, vip).syn(ISN).mss(1440));
        let met = met(&outcome);
        if let Met::Backend(_) = met {
            let refused = self.refuse(&outcome, ISN.wrapping_add(1));
            assert_eq!(refused.counted, [(Reason::ConnectRefused, 1)]);
        }
        met
    }

    fn client_sends(&mut self, segment: &Segment) -> Outcome {
        self.programs.ingress(Device::Client, &segment.bytes())
    }

    /// Lets the backend refuse the SYN that was sent to it.
    fn refuse(&mut self, sent: &Outcome, ack: u32) -> Outcome {
        let syn = Segment::parse(&sent.packet).expect("a SYN");
        let rst = segment(syn.to, syn.from).ethernet(Device::Backend.near_mac(), Device::Backend.far_mac());
        self.programs.ingress(Device::Backend, &rst.rst().ack(ack).window(0).bytes())
    }
}

fn plain(client: SocketAddr, vip: SocketAddr) -> Segment {
    segment(client, vip).ethernet(Device::Client.near_mac(), Device::Client.far_mac())
}

/// Returns the trie key without its prefix length.
fn data(key: &SuffixKey) -> [u8; 256] {
    let mut data = [0; 256];
    data.copy_from_slice(&key.as_bytes()[4..]);
    data
}

/// Returns the key of a policy's range without its prefix length.
fn range(key: &PolicyKey) -> [u8; 20] {
    let mut data = [0; 20];
    data.copy_from_slice(&key.as_bytes()[4..]);
    data
}

/// Returns the outcome of a run, which has exactly one reason, and a SYN if a backend was dialled.
fn met(outcome: &Outcome) -> Met {
    let [(reason, 1)] = outcome.counted[..] else { panic!("{:?}", outcome.counted) };
    let dialled = [Reason::ConnectSyn, Reason::ConnectNext, Reason::SynForwarded].contains(&reason);
    if !dialled {
        return Met::Refused(reason);
    }
    assert_eq!(outcome.verdict, verdict::REDIRECT, "{reason:?}");
    let syn = Segment::parse(&outcome.packet).expect("a SYN");
    assert_eq!(syn.flags, flag::SYN);
    Met::Backend(syn.to)
}
