//! Ends connections where no packet triggers it: time limits, removed backends, evicted hellos. This file
//! selects the connections; the pinned program `expire` ends them, one per run.

use std::os::fd::OwnedFd;
use std::time::Duration;

use common::maps::event::{EXPIRE_BUSY, EXPIRE_DONE, Expiry};
use common::maps::flow::{
    ClientTuple, Connection, FLOW_ESTABLISHED, Flow, HalfOpen, PENDING_UNDELIVERED, Pending,
};
use common::maps::settings::Settings;
use common::reason::Reason;
use zerocopy::IntoBytes;

use super::held::{self, Held};
use super::maps::Maps;
use super::orphans::Orphans;
use super::pin::{Pins, program};
use super::read::{now_ns, now_secs};
use super::syscall;
use super::table::TableError;
use super::trials::Trials;
use crate::plan::Selector;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// The least amount of packet data for a run: the program reads whole headers.
const DATA: usize = ETHERNET + 128;

/// Offset of the device index in `__sk_buff`. It determines how much of that structure is passed.
const CONTEXT_IFINDEX: usize = 40;

/// A flow with a FIN from both ends but without all acknowledgements is ended after this many seconds.
const HALF_CLOSED_SECS: u32 = 120;

/// Tries while the CPU is busy with a packet, and the pause after each.
const BUSY_TRIES: u32 = 1_000;
const BUSY_PAUSE: Duration = Duration::from_micros(100);

/// Why no connection could be ended.
#[derive(Debug, thiserror::Error)]
pub enum ExpireError {
    /// The program is not pinned.
    #[error("program expire cannot be opened: {0}")]
    Open(std::io::Error),
    /// The kernel refused to run the program.
    #[error("program expire cannot be run: {0}")]
    Run(std::io::Error),
    /// Working memory stayed marked as busy.
    #[error(
        "program expire cannot be run: packets are being handled on this CPU all the time; see `vestibule doctor`"
    )]
    Busy,
    /// A map cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Ends connections.
#[derive(Debug)]
pub struct Expirer {
    maps: Maps,
    program: OwnedFd,
    /// One of our devices. The kernel requires one for a run; the program itself chooses where to send.
    ifindex: u32,
    /// First position of `CLOSED_RING` not yet examined. Counts like the programs' cursors, without wrapping.
    closed_seen: u64,
    trials: Trials,
    held: Held,
    orphans: Orphans,
}

/// The numbers of connections that were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Established flows; both ends are reset.
    pub flows: u32,
    /// Closed flows; their entries are removed.
    pub closed: u32,
    /// Waiting hellos; their clients are reset.
    pub hellos: u32,
    /// Half-open connections; their entries are removed.
    pub half_opens: u32,
}

impl Expirer {
    /// Opens the program and a separate set of maps, for use in a separate thread.
    pub fn open(pins: &Pins, ifindex: u32) -> Result<Self, ExpireError> {
        let program =
            syscall::open_pinned(&pins.programs().join(program::EXPIRE)).map_err(ExpireError::Open)?;
        Ok(Self {
            maps: Maps::open(pins)?,
            program,
            ifindex,
            closed_seen: 0,
            trials: Trials::default(),
            held: Held::default(),
            orphans: Orphans::default(),
        })
    }

    /// The maps that this uses.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Sets the device for runs, one of ours.
    pub fn set_device(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }

    /// Runs the program for one connection. Returns false if there was no such connection.
    pub fn run(&self, expiry: &Expiry) -> Result<bool, ExpireError> {
        let data = packet(expiry);
        let mut context = [0u8; CONTEXT_IFINDEX + 4];
        context[CONTEXT_IFINDEX..].copy_from_slice(&self.ifindex.to_ne_bytes());
        // Under PREEMPT_RT the CPU's working memory may be in use by a packet, which takes microseconds.
        for _ in 0..BUSY_TRIES {
            match syscall::test_run(&self.program, &data, &context).map_err(ExpireError::Run)? {
                EXPIRE_BUSY => std::thread::sleep(BUSY_PAUSE),
                code => return Ok(code == EXPIRE_DONE),
            }
        }
        Err(ExpireError::Busy)
    }

    fn run_all(&self, expiries: &[Expiry]) -> Result<u32, ExpireError> {
        let mut done = 0;
        for expiry in expiries {
            done += u32::from(self.run(expiry)?);
        }
        Ok(done)
    }

    /// Ends every connection that the selector matches.
    pub fn reset(&self, selector: &Selector) -> Result<Ended, ExpireError> {
        self.reset_where(|client, listener, route, backend| selector.takes(client, listener, route, backend))
    }

    /// Ends every connection for which `takes(client, listener, route, backend)` returns true. A hello
    /// without a route has route and backend 0.
    pub fn reset_where(
        &self,
        takes: impl Fn(&ClientTuple, u32, u32, u32) -> bool,
    ) -> Result<Ended, ExpireError> {
        let takes_it =
            |client: &ClientTuple, is: &Connection| takes(client, is.listener, is.route, is.backend);
        let (mut flows, mut hellos, mut half_opens) = (Vec::new(), Vec::new(), Vec::new());
        self.maps.hellos.walk(|client, hello| {
            if takes_it(client, &hello.connection) && hello.connection.state != PENDING_UNDELIVERED {
                hellos.push(of_record(client, &hello.connection, Reason::ExpireHello));
            }
        })?;
        self.maps.half_opens.walk(|client, half_open| {
            if takes_it(client, &half_open.connection) {
                half_opens.push(of_record(client, &half_open.connection, Reason::ExpireHalfOpen));
            }
        })?;
        // Flows are last, so that a connection that became a flow during the other walks is found here.
        self.maps.flows.walk(|client, flow| {
            if flow.connection.state == FLOW_ESTABLISHED && takes_it(client, &flow.connection) {
                flows.push(of_flow(client, flow, Reason::ExpireRemoved));
            }
        })?;
        Ok(Ended {
            hellos: self.run_all(&hellos)?,
            half_opens: self.run_all(&half_opens)?,
            flows: self.run_all(&flows)?,
            closed: 0,
        })
    }

    /// Ends waiting hellos, half-open connections and closed flows at their time limits, and goes on with trials. Run
    /// every second.
    pub fn sweep_waiting(&mut self, settings: &Settings) -> Result<Ended, ExpireError> {
        let now = now_ns();
        let (mut hellos, mut half_opens) = (Vec::new(), Vec::new());
        self.maps.hellos.walk(|client, hello| {
            if hello_is_due(hello, now, settings) {
                hellos.push(of_record(client, &hello.connection, Reason::ExpireHello));
            }
        })?;
        self.maps.half_opens.walk(|client, half_open| {
            if half_open_is_due(half_open, now, settings) {
                half_opens.push(of_record(client, &half_open.connection, Reason::ExpireHalfOpen));
            }
        })?;
        Ok(Ended {
            hellos: self.run_all(&hellos)?,
            half_opens: self.run_all(&half_opens)?,
            closed: self.sweep_closed(settings)?,
            flows: self.sweep_trials()?,
        })
    }

    /// Asks the ends of flows with a RST on trial, or ends these flows. Run every second.
    fn sweep_trials(&mut self) -> Result<u32, ExpireError> {
        let mut flows = Vec::new();
        for client in self.trials.clients() {
            flows.extend(self.maps.flows.look_up(&client)?.map(|flow| (client, flow)));
        }
        let mut ended = 0;
        for (client, flow, reason) in self.trials.next(&flows) {
            let done = self.run(&of_flow(&client, &flow, reason))?;
            ended += u32::from(done && reason == Reason::ExpireTrial);
        }
        Ok(ended)
    }

    /// Removes flows that have been closed for long enough, in the order they closed.
    fn sweep_closed(&mut self, settings: &Settings) -> Result<u32, ExpireError> {
        let Some(cursors) = self.maps.cursors.look_up(&0)? else { return Ok(0) };
        let places = u64::from(self.maps.closed_ring.capacity());
        let mut done = 0;
        // Older slots were overwritten. The walk through all flows finds those flows.
        self.closed_seen = self.closed_seen.max(cursors.closed_head.saturating_sub(places));
        while self.closed_seen < cursors.closed_head {
            let place = (self.closed_seen % places) as u32;
            let Some(slot) = self.maps.closed_ring.look_up(&place)? else { break };
            if slot.taken.since_secs.saturating_add(settings.closed_timeout_secs) > now_secs() {
                break;
            }
            self.closed_seen += 1;
            let Some(flow) = self.maps.flows.look_up(&slot.owner)? else { continue };
            if flow_is_due(&flow, now_secs(), settings) == Some(Reason::ExpireClosed) {
                done += u32::from(self.run(&of_flow(&slot.owner, &flow, Reason::ExpireClosed))?);
            }
        }
        Ok(done)
    }

    /// Checks every flow: ends idle ones and those that are held, removes closed ones that are left over, and notes
    /// those on trial.
    pub fn sweep_flows(&mut self, settings: &Settings) -> Result<Ended, ExpireError> {
        let now = now_secs();
        let (mut idle, mut closed) = (Vec::new(), Vec::new());
        let (trials, held) = (&mut self.trials, &mut self.held);
        held.begin();
        self.maps.flows.walk(|client, flow| match flow_is_due(flow, now, settings) {
            Some(Reason::ExpireClosed) => closed.push(of_flow(client, flow, Reason::ExpireClosed)),
            Some(reason) => idle.push(of_flow(client, flow, reason)),
            None if held.is_over(client, flow, now) => {
                let seq = held::progress(flow);
                idle.push(Expiry { seq, ..of_flow(client, flow, Reason::ExpireHeld) });
            }
            None => trials.note(client, flow),
        })?;
        held.end();
        let (flows, closed) = (self.run_all(&idle)?, self.run_all(&closed)?);
        self.sweep_sources(settings)?;
        let orphans = self.orphans.sweep(&self.maps, now)?;
        if orphans > 0 {
            tracing::warn!(orphans, "removed source ports that belonged to no connection");
        }
        Ok(Ended { flows, closed, hellos: self.sweep_owed()?, half_opens: 0 })
    }

    /// Removes the counts of sources that are quiet for so long that none of their hellos can still wait.
    fn sweep_sources(&self, settings: &Settings) -> Result<(), ExpireError> {
        let now = now_ns();
        let mut quiet = Vec::new();
        self.maps.sources.walk(|prefix, source| {
            if source.newest_ns.saturating_add(settings.hello_timeout_ns) < now {
                quiet.push(*prefix);
            }
        })?;
        Ok(self.maps.sources.remove_all(&quiet)?)
    }

    /// Removes undelivered bytes of flows that are gone.
    fn sweep_owed(&self) -> Result<u32, ExpireError> {
        let mut owed = Vec::new();
        self.maps.hellos.walk(|client, hello| {
            if hello.connection.state == PENDING_UNDELIVERED {
                owed.push(of_record(client, &hello.connection, Reason::ExpireHello));
            }
        })?;
        let mut done = 0;
        for order in owed {
            let flow = self.maps.flows.look_up(&order.client)?;
            if flow.is_none_or(|flow| flow.connection.state != FLOW_ESTABLISHED) {
                done += u32::from(self.run(&order)?);
            }
        }
        Ok(done)
    }
}

fn expiry(client: &ClientTuple, reason: Reason) -> Expiry {
    Expiry { client: *client, seq: 0, reason: reason as u32, generation: 0, seen_secs: 0 }
}

/// Names the waiting or half-open connection: the program ends no other one of the same client.
fn of_record(client: &ClientTuple, connection: &Connection, reason: Reason) -> Expiry {
    Expiry { generation: connection.generation, ..expiry(client, reason) }
}

/// Names the flow as it was seen here: the program ends no other one, and none with a later packet.
fn of_flow(client: &ClientTuple, flow: &Flow, reason: Reason) -> Expiry {
    let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
    Expiry { generation, seen_secs, ..expiry(client, reason) }
}

/// Returns an Ethernet header with the ethertype of the client's family, followed by the `Expiry`.
fn packet(expiry: &Expiry) -> [u8; DATA] {
    let mut data = [0u8; DATA];
    let ethertype: u16 = if expiry.client.client.is_v4() { 0x0800 } else { 0x86dd };
    data[ETHERNET - 2..ETHERNET].copy_from_slice(&ethertype.to_be_bytes());
    data[ETHERNET..][..size_of::<Expiry>()].copy_from_slice(expiry.as_bytes());
    data
}

/// Returns why a flow is to be ended, or `None`. `now` is the monotonic clock in seconds.
pub fn flow_is_due(flow: &Flow, now: u32, settings: &Settings) -> Option<Reason> {
    let idle = now.saturating_sub(flow.seen_secs);
    if flow.connection.state != FLOW_ESTABLISHED {
        (idle >= settings.closed_timeout_secs).then_some(Reason::ExpireClosed)
    } else if flow.client.sent.fin & flow.backend.sent.fin != 0 {
        (idle >= HALF_CLOSED_SECS.min(settings.idle_timeout_secs)).then_some(Reason::ExpireIdle)
    } else {
        (idle >= settings.idle_timeout_secs).then_some(Reason::ExpireIdle)
    }
}

/// Returns whether a waiting hello reached its time limit. `now` is the monotonic clock in nanoseconds.
pub fn hello_is_due(hello: &Pending, now: u64, settings: &Settings) -> bool {
    // Undelivered bytes belong to a flow, and the flow's time limit applies.
    hello.connection.state != PENDING_UNDELIVERED
        && now.saturating_sub(hello.started_ns) >= settings.hello_timeout_ns
}

/// Returns whether a half-open connection reached its time limit. `now` is in nanoseconds as above.
pub fn half_open_is_due(half_open: &HalfOpen, now: u64, settings: &Settings) -> bool {
    now.saturating_sub(half_open.started_ns) >= settings.hello_timeout_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};
    use common::maps::flow::{FLOW_CLOSED, FLOW_RESET, PENDING_COLLECTING};

    fn settings() -> Settings {
        Settings {
            hello_timeout_ns: 10_000_000_000,
            idle_timeout_secs: 300,
            closed_timeout_secs: 5,
            ..Settings::zeroed()
        }
    }

    fn flow(state: u8, client_fin: u16, backend_fin: u16) -> Flow {
        let connection = Connection { state, ..Connection::zeroed() };
        let mut flow = Flow { connection, seen_secs: 1000, ..Flow::zeroed() };
        (flow.client.sent.fin, flow.backend.sent.fin) = (client_fin, backend_fin);
        flow
    }

    #[test]
    fn each_state_of_a_flow_has_its_time_limit() {
        let due = |flow: Flow, now| flow_is_due(&flow, now, &settings());
        let open = flow(FLOW_ESTABLISHED, 1, 0);
        assert_eq!((due(open, 1299), due(open, 1300)), (None, Some(Reason::ExpireIdle)));
        let closing = flow(FLOW_ESTABLISHED, 1, 1);
        assert_eq!((due(closing, 1119), due(closing, 1120)), (None, Some(Reason::ExpireIdle)));
        for state in [FLOW_CLOSED, FLOW_RESET] {
            let closed = flow(state, 0, 0);
            assert_eq!((due(closed, 1004), due(closed, 1005)), (None, Some(Reason::ExpireClosed)));
        }
        assert_eq!(due(open, 10), None, "a packet newer than our clock reading");
    }

    #[test]
    fn a_hello_is_ended_at_its_limit_but_owed_bytes_are_not() {
        let mut hello = Pending { started_ns: 5, ..Pending::zeroed() };
        hello.connection.state = PENDING_COLLECTING;
        assert!(!hello_is_due(&hello, 10_000_000_004, &settings()));
        assert!(hello_is_due(&hello, 10_000_000_005, &settings()));
        hello.connection.state = PENDING_UNDELIVERED;
        assert!(!hello_is_due(&hello, u64::MAX, &settings()));
    }

    #[test]
    fn the_order_stands_behind_an_ethernet_header_of_the_clients_family() {
        let tuple = |client| ClientTuple::tcp(client, Address::default(), Port::new(0), Port::new(443));
        let client = tuple(Address::v4([192, 0, 2, 1]));
        let order = Expiry { seq: 7, ..expiry(&client, Reason::HelloEvicted) };
        let data = packet(&order);
        assert_eq!(data[12..14], [0x08, 0x00]);
        assert_eq!(&data[14..][..size_of::<Expiry>()], order.as_bytes());
        let client = tuple(Address::v6([0x20; 16]));
        assert_eq!(packet(&Expiry { client, ..order })[12..14], [0x86, 0xdd]);
    }
}
