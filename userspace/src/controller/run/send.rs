//! Sends requests: those of the core beside each other, and removals of NodeStates one at a time.

use super::{Controller, TICK};
use crate::controller::announcement::AnnouncementWrite;
use crate::controller::claim_store::ClaimWrite;
use crate::controller::core::{self, Request};
use crate::controller::election::REQUEST;
use crate::controller::flights::Done;
use crate::controller::keys::Spare;
use crate::controller::kube_event::Note;
use crate::controller::metallb::{self, LOOK, Realm};
use crate::controller::object_writes;
use crate::controller::queue::{Outcome, Write};
use crate::controller::writes::{self, Told};
use crate::model::ObjectRef;
use std::time::Instant;
use tokio::time::error::Elapsed;
use tracing::warn;

impl Controller {
    /// Starts the requests that may start. Returns when to call it again.
    pub(super) fn send(&mut self, now: Instant) -> Instant {
        let mut wake = now + TICK;
        loop {
            match self.core.next(now) {
                Ok(Request::Status(object, write)) => self.send_status(object, write),
                Ok(Request::Claim(name, write)) => self.send_claim(name, *write),
                Ok(Request::Announcement(write)) => self.send_announcement(write),
                Ok(Request::Event(note, count)) => self.send_event(note, count),
                Ok(Request::Keys(spare)) => self.keep_keys(spare),
                Err(at) => {
                    wake = wake.min(at.unwrap_or(wake));
                    break;
                }
            }
        }
        self.class_finalizers.send(&self.client, &mut self.flights, now);
        if !self.flights.node && now >= self.node_due {
            self.forget_node(now);
        }
        if !self.flights.metallb && now >= self.metallb.1 {
            self.look_for_metallb(now);
        }
        wake
    }

    /// Keeps the keys, which need nothing that is read, if it is time to. Returns when to call it again.
    pub(super) fn send_keys(&mut self, now: Instant) -> Instant {
        match self.core.next_keys(now) {
            Ok(spare) => self.keep_keys(spare),
            Err(at) => return at.unwrap_or(now + TICK),
        }
        now + TICK
    }

    fn send_claim(&mut self, name: String, write: ClaimWrite) {
        let client = self.client.clone();
        self.flights.fly(async move {
            let request = tokio::time::timeout(REQUEST, writes::claim(&client, &name, write));
            let outcome = request.await.unwrap_or_else(late);
            Done::Core(core::Done::Claim(name, outcome))
        });
    }

    fn send_announcement(&mut self, write: AnnouncementWrite) {
        let client = self.client.clone();
        self.flights.fly(async move {
            let request = tokio::time::timeout(REQUEST, writes::announcement(&client, write));
            let outcome = request.await.unwrap_or_else(late);
            Done::Core(core::Done::Announcement(outcome))
        });
    }

    fn send_event(&mut self, note: Note, count: u32) {
        let (client, pod) = (self.client.clone(), self.options.pod.clone());
        self.flights.fly(async move {
            let told = writes::event(&client, &pod, &note, count);
            let told = tokio::time::timeout(REQUEST, told).await.unwrap_or(Told::Failed);
            Done::Core(core::Done::Event(note, told))
        });
    }

    fn keep_keys(&mut self, spare: Spare) {
        let (client, namespace) = (self.client.clone(), self.options.namespace.clone());
        let schedule = self.options.keys;
        self.flights.fly(async move {
            let keys = writes::keys(&client, &namespace, schedule, spare);
            let answer = tokio::time::timeout(REQUEST, keys).await;
            let kept = answer.unwrap_or_else(|_| Err("the API server does not answer".to_owned()));
            Done::Core(core::Done::Keys(kept))
        });
    }

    /// Looks for MetalLB, where something of it may be ours.
    fn look_for_metallb(&mut self, now: Instant) {
        let Some(realm) = Realm::of(&self.files.content().policy) else { return };
        let client = self.client.clone();
        self.metallb.1 = now + LOOK;
        self.flights.metallb = true;
        self.flights.fly(async move {
            let look = metallb::look(&client, &realm);
            let found = tokio::time::timeout(REQUEST, look).await;
            Done::MetalLb(found.unwrap_or_else(|_| Err("the API server does not answer".to_owned())))
        });
    }

    /// Removes the NodeState of a node that is gone, if there is one.
    fn forget_node(&mut self, now: Instant) {
        let gone = self.agents.gone(self.options.forget_nodes_after, &self.forgotten);
        let Some((node, state)) = gone else { return };
        let (client, node) = (self.client.clone(), node.to_owned());
        let (uid, version) = (state.uid.clone(), state.version.clone());
        self.forgotten.clone_from(&node);
        // The watch reports the removal a moment later, and a finalizer may delay it.
        self.node_due = now + TICK;
        self.flights.node = true;
        self.flights.fly(async move {
            let deletion = writes::forget_node(&client, &node, &uid, &version);
            let why = match tokio::time::timeout(REQUEST, deletion).await {
                Ok(Ok(())) => return Done::Node,
                Ok(Err(error)) => writes::short(&error),
                Err(_) => "the API server does not answer".to_owned(),
            };
            warn!(node, "the NodeState of a node that is gone stays: {why}");
            Done::Node
        });
    }

    /// Sends a status, unless the object's kind is no longer served.
    fn send_status(&mut self, object: ObjectRef, write: Write) {
        let Some(version) = self.store.version(object.kind) else { return self.core.drop_sent(&object) };
        let client = self.client.clone();
        self.flights.fly(async move {
            let request = object_writes::write(&client, &object, version, &write);
            let outcome = tokio::time::timeout(REQUEST, request).await.unwrap_or(Outcome::Failed);
            Done::Core(core::Done::Status(object, write, outcome))
        });
    }
}

/// Returns why a request failed that took too long.
fn late<T, E: From<String>>(_: Elapsed) -> Result<T, E> {
    Err(format!("the API server has not answered for {} s", REQUEST.as_secs()).into())
}
