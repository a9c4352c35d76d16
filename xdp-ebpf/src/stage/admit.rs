//! Whether the listener and the route take one more connection of the client: see `common::decide::admit`.

use common::decide::admit::{self, Held};
use common::maps::listener::Listener;
use common::maps::source::ShareKey;
use common::reason::Reason;

use crate::exit::Exit;
use crate::maps::{self, Maps};
use crate::scratch::{Dial, Received};
use crate::verified::verified;

verified! {
    /// Admits the segment of a new connection to the listener: a SYN, or what follows its answer.
    pub(crate) fn at_listener as admit_at_listener(received: Received, listener: Listener) -> Result<(), Exit> {
        by_policy(received, listener.policy)
    }
}

verified! {
    /// Admits a new connection of the client in `received` to the route in `dial.choice`.
    pub(crate) fn new as admit_new(received: Received, dial: Dial) -> Result<(), Exit> {
        let route = dial.choice.route;
        let policy = admit::policy(&Maps, route).map_err(Exit::refused)?;
        by_policy(received, policy)?;
        let Some(settings) = maps::settings() else { return Ok(()) };
        let share = maps::share(&ShareKey::of(&received.client, route));
        let (flows, connecting) = share.map_or((0, 0), |share| (share.flows, share.connecting));
        let held = Held {
            route_flows: maps::route_counters(&route).map_or(0, |counters| admit::count(counters.flows)),
            share_flows: admit::count(flows),
            share_connecting: admit::count(connecting),
        };
        admit::admit(&held, settings).map_err(Exit::refused)
    }
}

/// Admits the client by its address. A SYN of one that is not admitted gets no answer, as from a firewall.
#[inline(always)]
fn by_policy(received: &Received, policy: u16) -> Result<(), Exit> {
    if admit::is_admitted(&Maps, policy, &received.client.client) {
        return Ok(());
    }
    Err(match received.segment.is_syn() {
        true => Exit::drop(Reason::AdmitSynRange),
        false => Exit::reset(Reason::AdmitSourceRange),
    })
}
