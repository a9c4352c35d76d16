//! Describes open connections for another node, and opens connections described by one. Addresses and names
//! identify listener, route and backend, because ids differ between nodes. Pure.

use super::image::MapsImage;
use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{ClientTuple, Flow};
use common::maps::listener::ListenerKey;
use common::maps::route::{LABEL_ROUTE, Label, LabelKey};
use common::wire::opening::Opening;

/// Why a connection cannot continue on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// There is no listener where its client dialled.
    #[error("no listener at the address and port that the client dialled")]
    Listener,
    /// There is no route of this name.
    #[error("no route of this name")]
    Route,
    /// The route does not have this backend, or no longer.
    #[error("the route has no backend at this address and port")]
    Backend,
}

impl MapsImage {
    /// Returns what another node needs to know of a connection; `None`: its route has no name here.
    pub fn opening(&self, client: &ClientTuple, flow: &Flow) -> Option<Opening> {
        let label = self.labels.get(&LabelKey { kind: LABEL_ROUTE, id: flow.connection.route })?;
        Some(Opening::of(client, flow, *label))
    }

    /// Returns the flow of a connection that another node described, with the ids of these maps.
    pub fn open(&self, opening: &Opening) -> Result<Flow, Unknown> {
        let Opening { client, nat, .. } = opening;
        let key = ListenerKey { address: client.vip, port: client.vip_port, reserved: [0; 2] };
        let listener = self.listeners.get(&key).ok_or(Unknown::Listener)?;
        let is_named =
            |(key, label): &(&LabelKey, &Label)| key.kind == LABEL_ROUTE && **label == opening.route;
        let (route, _) = self.labels.iter().find(is_named).ok_or(Unknown::Route)?;
        let backend = self.backends.iter().find(|(_, backend)| {
            backend.route == route.id
                && (backend.address, backend.port) == (nat.backend, nat.backend_port)
                && backend.flags & BACKEND_RETIRED == 0
        });
        let (backend, _) = backend.ok_or(Unknown::Backend)?;
        Ok(opening.flow(listener.id, route.id, *backend))
    }
}
