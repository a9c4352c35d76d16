//! Requests to the API server that are in flight: what [`Core::next`](super::core::Core::next) returned, and one removal of a NodeState, one
//! GatewayClass and one look for MetalLB at a time.

use super::core;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::pin::Pin;

/// The result of a request.
pub(super) enum Done {
    /// Of a request of the core.
    Core(core::Done),
    Node,
    /// A GatewayClass's finalizers.
    Class,
    /// A Pod of MetalLB, if there is one.
    MetalLb(Result<Option<String>, String>),
}

/// All requests in flight.
#[derive(Default)]
pub(super) struct Flights {
    requests: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>,
    /// Whether a NodeState is being removed.
    pub(super) node: bool,
    /// Whether finalizers are being written.
    pub(super) class: bool,
    /// Whether MetalLB is being looked for.
    pub(super) metallb: bool,
}

impl Flights {
    /// Starts a request.
    pub(super) fn fly(&mut self, request: impl Future<Output = Done> + Send + 'static) {
        self.requests.push(Box::pin(request));
    }

    /// Waits until one of the requests ends; for ever if there is none. Cancel-safe.
    pub(super) async fn land(&mut self) -> Done {
        match self.requests.next().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// Waits until all have ended.
    pub(super) async fn all_land(&mut self) {
        while self.requests.next().await.is_some() {}
    }
}
