//! What the thread that ends connections does to the kernel: all of it, so that a test can do without.

use std::net::IpAddr;

use common::maps::event::{Expiry, RouteCounters};
use common::maps::flow::{ClientTuple, Connection};
use common::maps::settings::Settings;
use common::reason::Reason;

use crate::dataplane::apply::apply;
use crate::dataplane::expire::{ExpireError, Expirer};
use crate::dataplane::precedence::Precedence;
use crate::dataplane::read;
use crate::dataplane::swept::{Ended, Found};
use crate::dataplane::table::TableError;
use crate::plan::{Change, Selector};

/// Ends connections; see [`Expirer`].
pub(super) trait Ender {
    /// Has walks over all flows wait for what goes first.
    fn set_precedence(&mut self, precedence: Precedence);

    /// Sets the device for runs of the program.
    fn set_device(&mut self, ifindex: u32);

    /// Runs the program for one connection.
    fn run(&self, expiry: &Expiry) -> Result<bool, ExpireError>;

    /// Takes up a flow that a RST put on trial.
    fn take_up(&mut self, client: &ClientTuple) -> Result<(), ExpireError>;

    /// Ends every connection that the selector matches.
    fn reset(
        &mut self,
        selector: &Selector,
        is_old: impl Fn(u32, u32) -> bool + Sync,
    ) -> Result<Ended, ExpireError>;

    /// Ends every connection for which there is a reason.
    fn reset_where(
        &mut self,
        takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason> + Sync,
    ) -> Result<Ended, ExpireError>;

    /// Notes that another thread ended flows.
    fn note_ended_elsewhere(&mut self, flows: u32) -> Result<(), ExpireError>;

    /// Looks at all waiting hellos and half-open connections.
    fn sweep_waiting(&mut self, settings: &Settings) -> Result<Ended, ExpireError>;

    /// Looks at all flows.
    fn sweep_flows(&mut self, settings: &Settings) -> Result<Ended, ExpireError>;

    /// Whether some of what the last look at all flows evicted is still to be ended.
    fn is_evicting(&self) -> bool;

    /// Ends more of that.
    fn end_more(&mut self) -> Result<Ended, ExpireError>;

    /// Looks at what is left of connections that are gone. `true`: counts of sources had to make room.
    fn sweep_left(&mut self, settings: &Settings) -> Result<(Ended, bool), ExpireError>;

    /// Whether only looks at all flows find some of what they are made for.
    fn is_awaited(&self) -> Result<bool, ExpireError>;

    /// Whether all flows are to be looked at every second.
    fn is_crowded(&mut self) -> Result<bool, ExpireError>;

    /// What the last sweeps found.
    fn found(&self) -> Found;

    /// Backends whose link address the last sweeps missed.
    fn take_unresolved(&mut self) -> Vec<IpAddr>;

    /// Writes changes to the maps.
    fn write(&self, changes: &[Change]) -> Result<(), TableError>;

    /// The generation of the next connection.
    fn next_generation(&self) -> Result<u32, TableError>;

    /// The settings in the maps.
    fn settings(&self) -> Result<Settings, TableError>;

    /// The counters of all routes, by id.
    fn route_counters(&self) -> Result<Vec<(u32, RouteCounters)>, TableError>;
}

/// Has walks over all flows wait for whatever holds what is returned.
pub(super) fn share_precedence(ender: &mut impl Ender) -> Precedence {
    let precedence = Precedence::default();
    ender.set_precedence(precedence.clone());
    precedence
}

impl Ender for Expirer {
    fn set_precedence(&mut self, precedence: Precedence) {
        Self::set_precedence(self, precedence);
    }

    fn set_device(&mut self, ifindex: u32) {
        Self::set_device(self, ifindex);
    }

    fn run(&self, expiry: &Expiry) -> Result<bool, ExpireError> {
        Self::run(self, expiry)
    }

    fn take_up(&mut self, client: &ClientTuple) -> Result<(), ExpireError> {
        Self::take_up(self, client)
    }

    fn reset(
        &mut self,
        selector: &Selector,
        is_old: impl Fn(u32, u32) -> bool + Sync,
    ) -> Result<Ended, ExpireError> {
        Self::reset(self, selector, is_old)
    }

    fn reset_where(
        &mut self,
        takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason> + Sync,
    ) -> Result<Ended, ExpireError> {
        Self::reset_where(self, takes_it)
    }

    fn note_ended_elsewhere(&mut self, flows: u32) -> Result<(), ExpireError> {
        Self::note_ended_elsewhere(self, flows)
    }

    fn sweep_waiting(&mut self, settings: &Settings) -> Result<Ended, ExpireError> {
        Self::sweep_waiting(self, settings)
    }

    fn sweep_flows(&mut self, settings: &Settings) -> Result<Ended, ExpireError> {
        Self::sweep_flows(self, settings)
    }

    fn is_evicting(&self) -> bool {
        Self::is_evicting(self)
    }

    fn end_more(&mut self) -> Result<Ended, ExpireError> {
        Self::end_more(self)
    }

    fn sweep_left(&mut self, settings: &Settings) -> Result<(Ended, bool), ExpireError> {
        Self::sweep_left(self, settings)
    }

    fn is_awaited(&self) -> Result<bool, ExpireError> {
        Self::is_awaited(self)
    }

    fn is_crowded(&mut self) -> Result<bool, ExpireError> {
        Self::is_crowded(self)
    }

    fn found(&self) -> Found {
        Self::found(self)
    }

    fn take_unresolved(&mut self) -> Vec<IpAddr> {
        Self::take_unresolved(self)
    }

    fn write(&self, changes: &[Change]) -> Result<(), TableError> {
        apply(self.maps(), changes).map(drop)
    }

    fn next_generation(&self) -> Result<u32, TableError> {
        read::next_generation(self.maps())
    }

    fn settings(&self) -> Result<Settings, TableError> {
        Ok(self.maps().settings.look_up(&0)?.unwrap_or_default())
    }

    fn route_counters(&self) -> Result<Vec<(u32, RouteCounters)>, TableError> {
        read::route_counters(self.maps())
    }
}
