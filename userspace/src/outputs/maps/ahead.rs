//! The thread that orders to end connections pass first. Among millions of flows it ends those at once that are found by keys, while the
//! thread behind it, which looks at all flows, may be in the middle of that.

use std::mem::take;
use std::sync::mpsc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

use super::ended::Order;
use super::generation::is_older;
use crate::dataplane::behind::Behind;
use crate::dataplane::expire::ExpireError;
use crate::dataplane::maps::settle;
use crate::dataplane::precedence::Precedence;
use crate::dataplane::read;
use crate::dataplane::swept::Swept;
use crate::plan::Selector;

/// Ends flows that are found by keys; see [`Behind`].
pub(super) trait Finder {
    /// Sets the device for runs of the program.
    fn set_device(&mut self, ifindex: u32);

    /// Returns the generation of a connection that is made when no packet is between two look-ups any more; `None`: it cannot be read.
    fn settled(&self) -> Option<u32>;

    /// Ends the flows that the selector matches and that are found, among this number. `None`: nothing was looked for.
    fn end(&self, selector: &Selector, flows: Option<u64>) -> Result<Option<u32>, ExpireError>;
}

impl Finder for Behind {
    fn set_device(&mut self, ifindex: u32) {
        Self::set_device(self, ifindex);
    }

    fn settled(&self) -> Option<u32> {
        settle();
        let next = read::next_generation(self.maps());
        next.inspect_err(|error| warn!(%error, "which connections are of what has come back is not known"))
            .ok()
    }

    fn end(&self, selector: &Selector, flows: Option<u64>) -> Result<Option<u32>, ExpireError> {
        let is_needed = selector.since.is_some() || !selector.ranges.is_empty();
        let now = is_needed.then(|| read::next_generation(self.maps())).transpose()?;
        Self::end(self, selector, |generation, since| is_older(generation, since, now), flows)
    }
}

/// Passes all orders on, in their order, until one of both ends of the channel is gone. `swept` knows how many flows there are. Walks over all
/// of them, which have the same `precedence`, wait while some are found by keys.
pub(super) fn serve(
    mut finder: impl Finder,
    received: &mpsc::Receiver<Order>,
    onward: &UnboundedSender<Order>,
    swept: &Swept,
    precedence: &Precedence,
) {
    while let Ok(first) = received.recv() {
        let mut orders = vec![first];
        orders.extend(received.try_iter());
        let mut selector = Selector::default();
        for order in &mut orders {
            match order {
                Order::End(ended) => {
                    if ended.selector.may_come_back() {
                        ended.selector.since = finder.settled();
                    }
                    selector.join(ended.selector.clone());
                }
                Order::Device(ifindex) => finder.set_device(*ifindex),
                Order::Audit(..) | Order::Forget(_) => {}
            }
        }
        let mut flows = end(&finder, &selector, swept, precedence);
        for mut order in orders {
            if let Order::End(ended) = &mut order {
                ended.flows += take(&mut flows);
            }
            if onward.send(order).is_err() {
                return;
            }
        }
    }
}

/// Returns how many flows were ended.
fn end(finder: &impl Finder, selector: &Selector, swept: &Swept, precedence: &Precedence) -> u32 {
    if selector.is_empty() {
        return 0;
    }
    let begun = Instant::now();
    let _first = precedence.first();
    match finder.end(selector, swept.get().map(|found| found.flows)) {
        Ok(None) => 0,
        Ok(Some(flows)) => {
            debug!(flows, elapsed = ?begun.elapsed(), "ended before the walk: removal");
            flows
        }
        Err(error) => {
            warn!(%error, "connections of what was removed are not ended before all are looked at");
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::dataplane::swept::Found;
    use crate::outputs::maps::ended::Ended;

    /// Backends, and among how many flows theirs were looked for.
    type Asked = (BTreeSet<u32>, Option<u64>);

    /// What was asked for.
    #[derive(Default)]
    struct Fake<'a> {
        asked: Option<&'a RefCell<Vec<Asked>>>,
        devices: Option<&'a RefCell<Vec<u32>>>,
        fails: bool,
    }

    impl Finder for Fake<'_> {
        fn settled(&self) -> Option<u32> {
            Some(77)
        }

        fn set_device(&mut self, ifindex: u32) {
            self.devices.unwrap().borrow_mut().push(ifindex);
        }

        fn end(&self, selector: &Selector, flows: Option<u64>) -> Result<Option<u32>, ExpireError> {
            self.asked.unwrap().borrow_mut().push((selector.backends.clone(), flows));
            if self.fails { Err(ExpireError::Busy) } else { Ok(Some(7)) }
        }
    }

    /// Passes all orders on; nothing is known of flows.
    fn pass(asked: &RefCell<Vec<Asked>>, received: &mpsc::Receiver<Order>, onward: &UnboundedSender<Order>) {
        let finder = Fake { asked: Some(asked), ..Fake::default() };
        serve(finder, received, onward, &Swept::default(), &Precedence::default());
    }

    fn removal(backend: u32) -> Order {
        let selector = Selector { backends: BTreeSet::from([backend]), ..Selector::default() };
        Order::End(Ended { selector, ..Ended::default() })
    }

    /// An order that overtook another would run the program on a device that is gone, or delete what was adopted.
    #[test]
    fn all_orders_are_passed_on_in_their_order_with_how_many_flows_were_ended() {
        for fails in [false, true] {
            let (asked, devices) = (RefCell::default(), RefCell::default());
            let finder = Fake { asked: Some(&asked), devices: Some(&devices), fails };
            let (sender, received) = mpsc::channel();
            let (onward, mut passed) = unbounded_channel();
            let (forget, _forgotten) = mpsc::channel();
            for order in [
                removal(1),
                Order::Device(5),
                removal(2),
                Order::Forget(forget),
                Order::End(Ended::default()),
            ] {
                sender.send(order).unwrap();
            }
            drop(sender);
            let swept = Swept::default();
            swept.set(Some(Found { flows: 9_000_000, ..Found::default() }));
            serve(finder, &received, &onward, &swept, &Precedence::default());
            drop(onward);
            let mut names = Vec::new();
            while let Some(order) = passed.blocking_recv() {
                names.push(match order {
                    Order::End(ended) => format!("end {:?} {}", ended.selector.backends, ended.flows),
                    Order::Device(ifindex) => format!("device {ifindex}"),
                    Order::Forget(_) => "forget".to_owned(),
                    Order::Audit(..) => "audit".to_owned(),
                });
            }
            let flows = if fails { 0 } else { 7 };
            let first = format!("end {{1}} {flows}");
            assert_eq!(names, [&*first, "device 5", "end {2} 0", "forget", "end {} 0"]);
            // What has queued up is looked for at once.
            assert_eq!(asked.take(), [(BTreeSet::from([1, 2]), Some(9_000_000))]);
            assert_eq!(devices.take(), [5]);
        }
    }

    /// A second look at what was removed ended the connections of a route that had been put back on its listener meanwhile.
    #[test]
    fn what_may_come_back_is_passed_on_with_the_generation_from_which_it_stays() {
        let asked = RefCell::default();
        let (sender, received) = mpsc::channel();
        let (onward, mut passed) = unbounded_channel();
        let detached = Selector { detached: BTreeSet::from([(2, 5)]), ..Selector::default() };
        sender.send(Order::End(Ended { selector: detached, ..Ended::default() })).unwrap();
        sender.send(removal(1)).unwrap();
        drop(sender);
        pass(&asked, &received, &onward);
        let mut since = || match passed.blocking_recv() {
            Some(Order::End(ended)) => ended.selector.since,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            [since(), since()],
            [Some(77), None],
            "backends that are gone have their ids to themselves"
        );
    }

    /// Both at once took three times as long.
    #[test]
    fn walks_wait_while_flows_are_found_by_keys() {
        struct Held(Precedence);
        impl Finder for Held {
            fn settled(&self) -> Option<u32> {
                None
            }

            fn set_device(&mut self, _: u32) {}

            fn end(&self, _: &Selector, _: Option<u64>) -> Result<Option<u32>, ExpireError> {
                assert!(!self.0.allows_step());
                Ok(Some(1))
            }
        }
        let (precedence, (sender, received)) = (Precedence::default(), mpsc::channel());
        let (onward, mut passed) = unbounded_channel();
        sender.send(removal(1)).unwrap();
        drop(sender);
        serve(Held(precedence.clone()), &received, &onward, &Swept::default(), &precedence);
        assert!(matches!(passed.blocking_recv(), Some(Order::End(ended)) if ended.flows == 1));
        assert!(precedence.allows_step(), "afterwards they go on");
    }

    #[test]
    fn it_ends_with_the_thread_behind_it() {
        let asked = RefCell::default();
        let (sender, received) = mpsc::channel();
        let (onward, passed) = unbounded_channel();
        drop(passed);
        sender.send(removal(1)).unwrap();
        // It would wait for another order.
        pass(&asked, &received, &onward);
        assert_eq!(asked.take(), [(BTreeSet::from([1]), None)], "how many flows there are is not known");
    }
}
