//! Open connections in words that another node understands, and back: addresses and names lead to that node's ids. Pure.

use super::image::MapsImage;
use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{ClientTuple, Flow};
use common::maps::listener::ListenerKey;
use common::maps::route::{LABEL_ROUTE, Label, LabelKey};
use common::wire::opening::Opening;

/// Why a connection cannot go on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Nobody listens where its client dialled.
    #[error("no listener at the address and port that the client dialled")]
    Listener,
    /// No route has the name.
    #[error("no route of this name")]
    Route,
    /// The route has no such backend, or not any more.
    #[error("the route has no backend at this address and port")]
    Backend,
}

impl MapsImage {
    /// What another node has to know of a connection; `None`: its route has no name here.
    pub fn opening(&self, client: &ClientTuple, flow: &Flow) -> Option<Opening> {
        let label = self.labels.get(&LabelKey { kind: LABEL_ROUTE, id: flow.connection.route })?;
        Some(Opening::of(client, flow, *label))
    }

    /// The flow of a connection that another node told of, by the ids of these maps.
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
