//! Whether the route takes one more connection of the client: see `common::decide::admit`.

use common::decide::admit::{self, Held};
use common::maps::source::ShareKey;

use crate::exit::Exit;
use crate::maps;
use crate::scratch::{Dial, Received};
use crate::verified::verified;

verified! {
    /// Admits a new connection of the client in `received` to the route in `dial.choice`.
    pub(crate) fn new as admit_new(received: Received, dial: Dial) -> Result<(), Exit> {
        let Some(settings) = maps::settings() else { return Ok(()) };
        let route = dial.choice.route;
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
