//! The thread that ends connections: at time limits, when a hello is evicted, and when a listener, route or
//! backend is removed. It is a separate thread so that a walk through a million flows does not delay a
//! reload.

use std::io;
use std::mem::take;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::maps::address::Address;
use common::reason::Reason;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{debug, warn};

use super::ahead;
use super::ended::Again;
pub(super) use super::ended::{Ended, Freed, Order};
use super::ender::{Ender, share_precedence};
use super::generation::is_older;
use super::refusing::{INTERVAL_SECS, Refusing};
use super::resting::Resting;
use super::walked::{self, Need, Walked};
use crate::dataplane::behind::Behind;
use crate::dataplane::evictions::{Evictions, Notice};
use crate::dataplane::expire::{ExpireError, Expirer};
use crate::dataplane::maps::settle;
use crate::dataplane::pin::Pins;
use crate::dataplane::swept::{self, Found, Swept};
use crate::net::neighbour;
use crate::outputs::error::ReaperGone;
use crate::plan::{Census, Selector};

/// Delay until a reset is repeated, for connections that were being opened during the first one.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// The handle of the thread, and of the one that orders pass first.
#[derive(Debug)]
pub(super) struct Reaper {
    orders: mpsc::Sender<Order>,
    onward: UnboundedSender<Order>,
    /// Ids that nothing has any more, for each removal.
    freed: mpsc::Receiver<Freed>,
    listeners: Resting,
    policies: Resting,
    senders: Resting<Address>,
    threads: [JoinHandle<()>; 2],
}

impl Reaper {
    /// Starts the thread.
    pub(super) fn start(pins: &Pins, ifindex: u32, swept: Swept) -> io::Result<Self> {
        let mut expirer = Expirer::open(pins, ifindex).map_err(io::Error::other)?;
        let precedence = share_precedence(&mut expirer);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut evictions = {
            let _within = runtime.enter();
            Evictions::open(pins)?
        };
        let behind = Behind::open(pins, ifindex).map_err(io::Error::other)?;
        let (orders, first) = mpsc::channel();
        let (onward, received) = unbounded_channel();
        let (sender, freed) = mpsc::channel();
        let (duty, passes) = (Duty::new(expirer, sender, swept.clone()), onward.clone());
        let start =
            |name: &str, work: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name.into()).spawn(work);
        let threads = [
            start("ahead", Box::new(move || ahead::serve(behind, &first, &passes, &swept, &precedence)))?,
            start(
                "reaper",
                Box::new(move || {
                    runtime.block_on(duty.serve(received, async move || evictions.next().await))
                }),
            )?,
        ];
        let (listeners, policies, senders) = (Resting::default(), Resting::default(), Resting::default());
        Ok(Self { orders, onward, freed, listeners, policies, senders, threads })
    }

    /// Stops the thread and waits for it: nothing is written after this. The next process to start finds what
    /// was not cleared away in the maps.
    pub(super) fn end(self) {
        drop((self.orders, self.onward));
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                warn!(name, "a thread that ends connections died");
            }
        }
    }

    /// Waits until the thread has done all earlier requests, without their second resets, and forgets their deletions: the maps are
    /// read again, and what is to be deleted is found there.
    pub(super) fn forget_deletions(&mut self) {
        let (sender, done) = mpsc::channel();
        if self.ask(Order::Forget(sender)).is_ok() {
            // Nothing is ever sent: `recv` returns when the sender is dropped.
            let _ = done.recv();
        }
        drop(self.freed());
        self.policies = Resting::default();
        self.senders = Resting::default();
    }

    /// Ends what was removed.
    pub(super) fn end_removed(&mut self, mut ended: Ended) -> Result<(), ReaperGone> {
        let listeners = ended.selector.listeners.clone();
        let policies = ended.policies();
        self.listeners.begin(&listeners);
        self.policies.begin(&policies);
        self.senders.begin(&ended.senders);
        ended.freed = vec![Freed { listeners, policies, senders: ended.senders.clone() }];
        self.ask(Order::End(ended))
    }

    /// Returns ids that nothing has any more, each once.
    pub(super) fn freed(&mut self) -> Freed {
        let mut all = Freed::default();
        for freed in self.freed.try_iter() {
            all.listeners.extend(self.listeners.end(freed.listeners));
            all.policies.extend(self.policies.end(freed.policies));
            all.senders.extend(self.senders.end(freed.senders));
        }
        all
    }

    /// Whether policies that are gone are still in the map.
    pub(super) fn is_removing_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    /// Whether backends that are gone may still reply to a connection.
    pub(super) fn is_ending_senders(&self) -> bool {
        !self.senders.is_empty()
    }

    /// Whether ids of removed listeners are not free yet.
    pub(super) fn is_removing_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Sends the thread a request.
    pub(super) fn ask(&self, order: Order) -> Result<(), ReaperGone> {
        if self.onward.is_closed() {
            return Err(ReaperGone);
        }
        self.orders.send(order).map_err(|_| ReaperGone)
    }
}

struct Duty<E> {
    expirer: E,
    again: Vec<Again>,
    freed: mpsc::Sender<Freed>,
    tick: u32,
    walked: Walked,
    /// The last look at what is left of connections that are gone.
    left: Walked,
    /// It found that counts of sources have to make room: until they do, new sources are not counted.
    are_counts_full: bool,
    refusing: Refusing,
    /// The number of routes that refuse connections, once it is known.
    refuse: Option<u64>,
    /// Where to say what sweeps found.
    swept: Swept,
}

impl<E> Drop for Duty<E> {
    fn drop(&mut self) {
        self.swept.set(None);
    }
}

impl<E: Ender> Duty<E> {
    fn new(expirer: E, freed: mpsc::Sender<Freed>, swept: Swept) -> Self {
        let (walked, left) = (Walked::default(), Walked::default());
        let (again, refusing, tick, are_counts_full, refuse) =
            (Vec::new(), Refusing::default(), 0, false, None);
        Self { expirer, again, freed, tick, walked, left, are_counts_full, refusing, refuse, swept }
    }

    async fn serve(
        mut self,
        mut orders: UnboundedReceiver<Order>,
        mut next: impl AsyncFnMut() -> io::Result<Notice>,
    ) {
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.again.iter().filter_map(|again| again.due).min();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.obey(order, &mut orders),
                    None => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.repeat(),
                _ = second.tick() => self.sweep(),
                () = yield_now(), if self.expirer.is_evicting() => self.end_more(),
                notice = next() => match notice {
                    Ok(notice) => self.obey_program(&notice),
                    Err(error) => return warn!(%error, "evictions cannot be awaited"),
                },
            }
        }
    }

    /// Does this request and all that have queued up behind it.
    fn obey(&mut self, first: Order, orders: &mut UnboundedReceiver<Order>) {
        let mut ended = Ended::default();
        let mut waiting = Vec::new();
        let mut next = Some(first);
        while let Some(order) = next {
            match order {
                Order::End(more) => ended.join(more),
                Order::Device(ifindex) => self.expirer.set_device(ifindex),
                Order::Forget(sender) => waiting.push(sender),
                Order::Audit(census, generation) => {
                    self.audit(&census, generation);
                    let audit = Some((census, generation));
                    self.again.push(Again { due: due(), audit, is_complete: true, ..Again::default() });
                }
            }
            next = orders.try_recv().ok();
        }
        if !ended.is_empty() {
            self.end(ended);
        }
        if !waiting.is_empty() {
            for again in &mut self.again {
                again.later.clear();
                again.freed.iter_mut().for_each(|freed| {
                    freed.policies.clear();
                    freed.senders.clear();
                });
            }
        }
        drop(waiting);
    }

    fn audit(&mut self, census: &Census, generation: u32) {
        let now = self.next_generation();
        let ended = self.expirer.reset_where(|client, is| match () {
            () if !is_older(is.generation, generation, now) => None,
            () if !census.knows(client, is.listener, is.route, is.backend) => Some(Reason::ExpireRemoved),
            () if !census.admits(client, is.route) => Some(Reason::ExpireRefused),
            () => None,
        });
        report("audit", ended);
    }

    fn end(&mut self, ended: Ended) {
        let Ended { retire, selector, later, freed, flows, .. } = ended;
        if let Err(error) = self.expirer.note_ended_elsewhere(flows) {
            warn!(%error, "connections that were ended count as open until they are removed");
        }
        if !retire.is_empty() {
            settle();
            if let Err(error) = self.expirer.write(&retire) {
                warn!(%error, "backends that are gone are not marked; nothing leads to them any more");
            }
        }
        let is_complete = self.reset(&selector);
        self.again.iter_mut().for_each(|again| again.selector.yield_to(&selector));
        self.again.push(Again { due: due(), selector, audit: None, later, freed, is_complete });
    }

    /// Returns the generation of the next connection; `None`: it cannot be read.
    fn next_generation(&self) -> Option<u32> {
        let next = self.expirer.next_generation();
        next.inspect_err(|error| warn!(%error, "the generation of the next connection is not known")).ok()
    }

    /// Returns whether all connections were looked at.
    fn reset(&mut self, selector: &Selector) -> bool {
        if selector.is_empty() {
            return true;
        }
        let is_needed = selector.since.is_some() || !selector.ranges.is_empty();
        let now = if is_needed { self.next_generation() } else { None };
        let is_old = |generation, since| is_older(generation, since, now);
        report("removal", self.expirer.reset(selector, is_old))
    }

    fn repeat(&mut self) {
        let now = Instant::now();
        let is_due = |again: &mut Again| again.due.is_none_or(|due| due <= now);
        for mut again in self.again.extract_if(.., is_due).collect::<Vec<_>>() {
            if let Some((census, generation)) = again.audit.take() {
                self.audit(&census, generation);
            }
            let was_complete = again.is_complete;
            again.is_complete = self.reset(&again.selector);
            let is_complete = was_complete && again.is_complete;
            if is_complete {
                again.selector = Selector::default();
            }
            let written = self.expirer.write(&again.later);
            if let Err(error) = &written {
                warn!(%error, "what nothing leads to any more is still there, and is deleted again");
            } else {
                again.later.clear();
                for freed in &mut again.freed {
                    let mut done = Freed { policies: take(&mut freed.policies), ..Freed::default() };
                    if is_complete {
                        done = Freed { policies: done.policies, ..take(freed) };
                    }
                    // Without a receiver, the maps are another process's to write.
                    drop(self.freed.send(done));
                }
            }
            if written.is_err() || !is_complete {
                self.again.push(Again { due: due(), ..again });
            }
        }
    }

    fn sweep(&mut self) {
        let settings = match self.expirer.settings() {
            Ok(settings) => settings,
            Err(error) => return warn!(%error, "no settings"),
        };
        report("time limit", self.expirer.sweep_waiting(&settings));
        if let Err(error) = neighbour::resolve(&self.expirer.take_unresolved()) {
            warn!(%error, "the link addresses of backends cannot be asked for");
        }
        self.tick = self.tick.wrapping_add(1);
        let is_time = self.tick.is_multiple_of(walked::every_secs(&settings));
        let need = self.need();
        if self.walked.calls_for_next(is_time, need) && !self.expirer.is_evicting() {
            self.walked =
                Walked::during("time limit", |why| report(why, self.expirer.sweep_flows(&settings)));
        }
        if self.left.calls_for_next(is_time, if self.are_counts_full { Need::Limits } else { Need::Left }) {
            self.left = Walked::during("left over", |why| {
                let swept = self.expirer.sweep_left(&settings);
                self.are_counts_full = swept.as_ref().map_or(self.are_counts_full, |(_, is_full)| *is_full);
                report(why, swept.map(|(ended, _)| ended))
            });
        }
        if self.tick % INTERVAL_SECS == 1 {
            match self.expirer.route_counters() {
                Ok(counters) => self.refuse = self.refusing.look(&counters),
                Err(error) => warn!(%error, "which routes refuse connections is not known"),
            }
        }
        self.swept.set(Some(Found { refusing: self.refuse, ..self.expirer.found() }));
    }

    fn end_more(&mut self) {
        report("crowded", self.walked.go_on(|| self.expirer.end_more()));
    }

    /// Returns what the next walk over all flows is needed for.
    fn need(&mut self) -> Need {
        let needs = |expirer: &mut E| match () {
            () if expirer.is_crowded()? => Ok(Need::Room),
            () if expirer.is_awaited()? => Ok(Need::Awaited),
            () => Ok::<_, ExpireError>(Need::Limits),
        };
        needs(&mut self.expirer).unwrap_or_else(|error| {
            warn!(%error, "whether the flow map is crowded is not known");
            Need::Awaited
        })
    }

    fn obey_program(&mut self, notice: &Notice) {
        match notice {
            Notice::Evicted(expiry) => {
                if let Err(error) = self.expirer.run(expiry) {
                    warn!(%error, "a client whose hello was evicted is not reset");
                }
            }
            Notice::OnTrial(client) => {
                if let Err(error) = self.expirer.take_up(client) {
                    warn!(%error, "the ends of a connection with a RST on trial are asked late");
                }
            }
        }
    }
}

/// When a second part is due.
fn due() -> Option<Instant> {
    Some(Instant::now() + AGAIN)
}

/// Logs what was ended. Returns whether that was possible.
fn report(why: &str, ended: Result<swept::Ended, ExpireError>) -> bool {
    match &ended {
        Ok(ended) if *ended == swept::Ended::default() => {}
        Ok(swept::Ended { flows, closed, hellos, half_opens }) => {
            debug!(flows, closed, hellos, half_opens, "ended: {why}");
        }
        Err(error) => warn!(%error, "connections cannot be ended: {why}"),
    }
    ended.is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use common::maps::event::{Expiry, RouteCounters};
    use common::maps::flow::{ClientTuple, Connection};
    use common::maps::settings::Settings;

    use super::*;
    use crate::dataplane::precedence::Precedence;
    use crate::dataplane::table::TableError;
    use crate::plan::Change;

    /// Connections that are looked at only if the test wants it.
    #[derive(Default)]
    struct Fake {
        fails: bool,
        found: Found,
        flow_sweeps: u32,
        left_sweeps: u32,
        are_counts_full: bool,
        is_awaited: bool,
        /// Pieces that are still to be ended.
        evicting: Arc<AtomicU32>,
        noted: u32,
        is_crowded: bool,
        counters: RouteCounters,
        taken_up: Vec<ClientTuple>,
        precedence: Option<Precedence>,
    }

    impl Fake {
        fn ended(&self) -> Result<swept::Ended, ExpireError> {
            if self.fails { Err(ExpireError::Busy) } else { Ok(swept::Ended::default()) }
        }
    }

    impl Ender for Fake {
        fn set_precedence(&mut self, precedence: Precedence) {
            self.precedence = Some(precedence);
        }

        fn set_device(&mut self, _: u32) {}

        fn run(&self, _: &Expiry) -> Result<bool, ExpireError> {
            Ok(false)
        }

        fn take_up(&mut self, client: &ClientTuple) -> Result<(), ExpireError> {
            self.taken_up.push(*client);
            Ok(())
        }

        fn reset(
            &mut self,
            _: &Selector,
            _: impl Fn(u32, u32) -> bool + Sync,
        ) -> Result<swept::Ended, ExpireError> {
            self.ended()
        }

        fn reset_where(
            &mut self,
            _: impl Fn(&ClientTuple, &Connection) -> Option<Reason> + Sync,
        ) -> Result<swept::Ended, ExpireError> {
            self.ended()
        }

        fn note_ended_elsewhere(&mut self, flows: u32) -> Result<(), ExpireError> {
            self.noted += flows;
            Ok(())
        }

        fn sweep_waiting(&mut self, _: &Settings) -> Result<swept::Ended, ExpireError> {
            self.ended()
        }

        fn sweep_flows(&mut self, _: &Settings) -> Result<swept::Ended, ExpireError> {
            self.flow_sweeps += 1;
            self.ended()
        }

        fn is_evicting(&self) -> bool {
            self.evicting.load(Ordering::Relaxed) > 0
        }

        fn end_more(&mut self) -> Result<swept::Ended, ExpireError> {
            self.evicting.fetch_sub(1, Ordering::Relaxed);
            self.ended()
        }

        fn sweep_left(&mut self, _: &Settings) -> Result<(swept::Ended, bool), ExpireError> {
            self.left_sweeps += 1;
            self.ended().map(|ended| (ended, self.are_counts_full))
        }

        fn is_crowded(&mut self) -> Result<bool, ExpireError> {
            Ok(self.is_crowded)
        }

        fn is_awaited(&self) -> Result<bool, ExpireError> {
            Ok(self.is_awaited)
        }

        fn found(&self) -> Found {
            self.found
        }

        fn take_unresolved(&mut self) -> Vec<IpAddr> {
            Vec::new()
        }

        fn write(&self, _: &[Change]) -> Result<(), TableError> {
            Ok(())
        }

        fn next_generation(&self) -> Result<u32, TableError> {
            Ok(1)
        }

        fn settings(&self) -> Result<Settings, TableError> {
            Ok(Settings { idle_timeout_secs: 3_600, ..Settings::default() })
        }

        fn route_counters(&self) -> Result<Vec<(u32, RouteCounters)>, TableError> {
            Ok(vec![(1, self.counters)])
        }
    }

    #[test]
    fn walks_wait_for_the_thread_that_goes_first() {
        let mut fake = Fake::default();
        let precedence = share_precedence(&mut fake);
        let of_walks = fake.precedence.unwrap();
        assert!(of_walks.allows_step());
        let first = precedence.first();
        assert!(!of_walks.allows_step());
        drop(first);
        assert!(of_walks.allows_step());
    }

    /// What refers to it was not found, and would belong to the listener that has the id next.
    #[test]
    fn after_an_unsuccessful_walk_others_follow_and_ids_of_listeners_are_not_free_before_two_found_all() {
        let unsuccessful = [
            (&[true, true][..], 2),
            (&[false, true, true], 3),
            (&[true, false, true, true], 4),
            (&[false, false, true, true], 4),
        ];
        for (walks, least) in unsuccessful {
            let (sender, freed) = mpsc::channel();
            let mut duty = Duty::new(Fake::default(), sender, Swept::default());
            let listeners = BTreeSet::from([7]);
            let selector = Selector { listeners: listeners.clone(), ..Selector::default() };
            let senders = BTreeSet::from([IpAddr::from([10, 1, 0, 1]).into()]);
            let gone = Freed {
                listeners: listeners.clone(),
                policies: BTreeSet::from([3]),
                senders: senders.clone(),
            };
            duty.expirer.fails = !walks[0];
            duty.end(Ended { selector, freed: vec![gone], ..Ended::default() });
            for (walk, succeeds) in (2..).zip(&walks[1..]) {
                duty.again.iter_mut().for_each(|again| again.due = None);
                duty.expirer.fails = !succeeds;
                duty.repeat();
                let freed = freed.try_recv().unwrap();
                assert_eq!(freed.policies.contains(&3), walk == 2, "their ranges are deleted in any case");
                assert_eq!(freed.listeners == listeners, walk == least, "{walks:?} {walk}");
                assert_eq!(freed.senders == senders, walk == least, "they may reply to what was not found");
            }
            assert!(duty.again.is_empty());
        }
    }

    /// They linger in the map, and others would be evicted for them.
    #[test]
    fn flows_that_were_ended_ahead_are_noted() {
        let mut duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
        let mut ended = Ended { flows: 7, ..Ended::default() };
        ended.join(Ended { flows: 2, ..Ended::default() });
        duty.end(ended);
        assert_eq!(duty.expirer.noted, 9);
    }

    /// The next walk over millions of flows may be four minutes away, and its ends are to be asked within one.
    #[test]
    fn a_flow_on_trial_is_taken_up_when_it_is_reported() {
        let mut duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
        let client = ClientTuple { client: IpAddr::from([192, 0, 2, 1]).into(), ..ClientTuple::zeroed() };
        duty.obey_program(&Notice::OnTrial(client));
        assert_eq!(duty.expirer.taken_up, [client]);
    }

    /// Whether or not it is a tenth second: a full map refuses everybody.
    #[test]
    fn a_crowded_map_is_looked_through_as_soon_as_that_takes_no_more_than_a_third_of_a_cpu() {
        for tick in [0, 9] {
            for (is_crowded, ago, sweeps) in [(false, 2_000, 0), (true, 1_000, 0), (true, 2_000, 1)] {
                let mut duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
                (duty.tick, duty.walked) = (tick, Walked::took(1_000, ago));
                duty.expirer.is_crowded = is_crowded;
                duty.sweep();
                assert_eq!(duty.expirer.flow_sweeps, sweeps, "{tick} {is_crowded} {ago}");
            }
        }
    }

    /// Orders and what is waiting have their turn in between: the end of a removed backend's connections took seconds.
    #[test]
    fn what_a_walk_evicted_is_ended_without_a_wait_and_after_orders() {
        let duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
        let (done, evicting) = (mpsc::channel(), Arc::clone(&duty.expirer.evicting));
        evicting.store(1_000, Ordering::Relaxed);
        let (orders, received) = unbounded_channel();
        assert!(orders.send(Order::Forget(done.0)).is_ok());
        let ended = async {
            while evicting.load(Ordering::Relaxed) > 0 {
                let is_obeyed = done.1.try_recv() == Err(mpsc::TryRecvError::Disconnected);
                assert!(is_obeyed || evicting.load(Ordering::Relaxed) >= 999);
                yield_now().await;
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                () = duty.serve(received, async || std::future::pending().await) => panic!("it ended"),
                () = ended => {}
                () = sleep_until(Instant::now() + Duration::from_secs(30)) => panic!("{evicting:?} are left"),
            }
        });
    }

    /// It would find them again.
    #[test]
    fn the_next_walk_waits_until_what_the_last_one_evicted_is_ended() {
        let mut duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
        (duty.expirer.is_crowded, duty.expirer.evicting) = (true, Arc::new(1.into()));
        duty.sweep();
        assert_eq!(duty.expirer.flow_sweeps, 0);
        duty.end_more();
        duty.sweep();
        assert_eq!(duty.expirer.flow_sweeps, 1);
    }

    /// A map of counts that is full of sources that are gone bounds nobody.
    #[test]
    fn what_is_left_over_does_not_wait_for_a_walk_over_all_flows() {
        let mut duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
        (duty.tick, duty.walked) = (9, Walked::took(4_000, 30_000));
        duty.sweep();
        assert_eq!((duty.expirer.flow_sweeps, duty.expirer.left_sweeps), (0, 1));
    }

    /// New sources are not counted, and so not bounded, until the next look makes room.
    #[test]
    fn a_full_map_of_counts_is_looked_at_sooner() {
        for (are_counts_full, sweeps) in [(false, 1), (true, 2)] {
            let mut duty =
                Duty::new(Fake { are_counts_full, ..Fake::default() }, mpsc::channel().0, Swept::default());
            duty.tick = 9;
            duty.sweep();
            (duty.tick, duty.left) = (9, Walked::took(100, 3_000));
            duty.sweep();
            assert_eq!(duty.expirer.left_sweeps, sweeps);
        }
    }

    /// Flows on trial that no report says anything of, and a backend without source ports.
    #[test]
    fn what_only_walks_find_does_not_wait_for_as_long_as_time_limits() {
        for (is_awaited, sweeps) in [(false, 0), (true, 1)] {
            let mut duty = Duty::new(Fake::default(), mpsc::channel().0, Swept::default());
            (duty.tick, duty.walked) = (9, Walked::took(4_000, 50_000));
            duty.expirer.is_awaited = is_awaited;
            duty.sweep();
            assert_eq!(duty.expirer.flow_sweeps, sweeps);
        }
    }

    /// A scrape reads this, and walks through nothing itself.
    #[test]
    fn what_sweeps_find_is_published_until_they_end() {
        let (swept, (sender, _freed)) = (Swept::default(), mpsc::channel());
        let mut duty = Duty::new(Fake::default(), sender, swept.clone());
        assert_eq!(swept.get(), None);
        duty.expirer.counters.refused = 1_000;
        for (flows, hellos) in [(5, 7), (6, 0)] {
            let found = Found { flows, hellos, refusing: None };
            duty.expirer.found = found;
            duty.sweep();
            assert_eq!(swept.get(), Some(found));
        }
        for _ in 2..2 * INTERVAL_SECS {
            duty.expirer.counters.refused += 1;
            duty.sweep();
        }
        assert_eq!(swept.get().unwrap().refusing, None, "not before the second interval is over");
        duty.sweep();
        assert_eq!(swept.get().unwrap().refusing, Some(1));
        assert_eq!(duty.expirer.flow_sweeps, 2 * INTERVAL_SECS / 10);
        drop(duty);
        assert_eq!(swept.get(), None);
    }
}
