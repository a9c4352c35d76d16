use super::super::claim_store::ClaimNews;
use super::super::core::Core;
use super::super::liveness::Liveness;
use super::secret::SCHEDULE;
use super::{Event, Simulation, WATCH};
use crate::model::Facts;

impl Simulation {
    /// Another controller begins to lead, which knows only what the API server has, and whose watch of Claims is late. Requests of the one
    /// before have ended.
    pub(super) fn restart(&mut self) {
        for number in self.requests.keys().copied().collect::<Vec<_>>() {
            self.ended(number);
        }
        self.core = Core::new(Facts::default(), SCHEDULE, self.now);
        let now = (self.server.claims.clone(), self.server.version());
        let (claims, version) = std::mem::replace(&mut self.follows, now);
        self.core.take_claims(ClaimNews::Listed(claims, version));
        self.core.lead(true);
        self.at(self.now + WATCH, Event::ClaimsListed);
        self.liveness = Liveness::default();
        let leases = (0..self.nodes.count()).map(|node| self.nodes.lease(node)).collect();
        self.liveness.listed(leases, self.now);
        self.cluster = self.server.cluster.clone();
        self.statuses = self.server.statuses.clone();
        self.busy_until = self.now;
        self.wake();
    }

    /// The list that a leader begins with has come.
    pub(super) fn list_claims(&mut self) {
        self.core.take_claims(ClaimNews::Listed(self.server.claims.clone(), self.server.version()));
        self.wake();
    }
}
