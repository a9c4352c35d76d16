//! Whether the other end of a veth takes what XDP sends back. One without an XDP program and without GRO takes no such frame: the driver
//! drops them all, and with them the answers to most SYNs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::Node;
use crate::net::ethtool::SentBack;

/// A device as it was when it was looked at. If anything of it is different, its other end may be, too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    name: Arc<str>,
    index: u32,
    mtu: u32,
    link_address: Option<[u8; 6]>,
}

impl Device {
    /// `None`: there is no such device, or it is no veth.
    fn of(name: &Arc<str>, node: &Node) -> Option<Self> {
        let index = node.index(name)?;
        let link = node.links.get(&index).filter(|link| link.is_veth)?;
        Some(Self { name: Arc::clone(name), index, mtu: link.mtu, link_address: link.link_address })
    }
}

/// How many frames must be lost while none is taken: one may be lost while a program at the other end is replaced.
const MANY: u64 = 8;

/// What was found of a device.
#[derive(Clone, Copy, Debug)]
struct Found {
    sent: SentBack,
    /// How many had been lost at the look after which others may have been.
    lost: u64,
    /// Whether a look has found frames lost and none taken since.
    is_losing: bool,
}

/// What became of the frames that XDP sent back.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// What was found when the other end was last seen to take a frame, or looked at first.
    last: BTreeMap<Device, Found>,
    /// Devices whose other ends took none.
    lost: BTreeSet<Device>,
}

impl Answers {
    /// Looks at those of the devices with these names that are among `attached`. `ask` returns what became of a device's frames since it
    /// was made. Returns whether there is another one of which all were lost, and many, in two looks.
    pub(super) fn look(
        &mut self,
        names: &[Arc<str>],
        node: &Node,
        attached: &BTreeSet<u32>,
        ask: impl Fn(&str) -> Option<SentBack>,
    ) -> bool {
        let devices = names.iter().filter_map(|name| Device::of(name, node));
        let on = devices.filter(|device| attached.contains(&device.index));
        let now: BTreeMap<_, _> =
            on.filter_map(|device| ask(&device.name).map(|sent| (device, sent))).collect();
        let is_lost = |device: &Device, now: &SentBack| {
            let last = self.last.get(device);
            // What was lost at once, as while the program at the other end was replaced, is found by one look.
            last.is_some_and(|Found { sent, lost, is_losing }| {
                let finds_more = now.taken == sent.taken && now.lost > *lost;
                *is_losing && finds_more && now.lost.saturating_sub(sent.lost) >= MANY
            })
        };
        let lost: Vec<Device> = now
            .iter()
            .filter(|(device, now)| is_lost(device, now))
            .map(|(device, _)| device.clone())
            .collect();
        let since = |device: Device, now: SentBack| {
            let found = match self.last.get(&device) {
                Some(Found { sent, lost, is_losing }) if sent.taken == now.taken => {
                    Found { sent: *sent, lost: now.lost, is_losing: *is_losing || now.lost > *lost }
                }
                _ => Found { sent: now, lost: now.lost, is_losing: false },
            };
            (device, found)
        };
        self.last = now.into_iter().map(|(device, now)| since(device, now)).collect();
        let before = self.lost.len();
        self.lost.extend(lost);
        self.lost.len() > before
    }

    /// Forgets devices that are different, or not in the list any more: XDP is tried there again.
    pub(super) fn keep(&mut self, names: &[Arc<str>], node: &Node) {
        let is_same = |device: &Device| {
            names.contains(&device.name) && Device::of(&device.name, node).as_ref() == Some(device)
        };
        self.lost.retain(is_same);
    }

    /// Whether the device's other end took none.
    pub(super) fn are_lost(&self, name: &Arc<str>, node: &Node) -> bool {
        Device::of(name, node).is_some_and(|device| self.lost.contains(&device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;

    fn node(change: impl Fn(&mut Link)) -> Node {
        let mut link = Link { name: "eth0".into(), is_veth: true, mtu: 1500, ..Link::default() };
        change(&mut link);
        Node { links: [(2, link)].into(), ..Node::default() }
    }

    #[test]
    fn a_device_whose_frames_are_all_lost_is_noted_until_it_changes() {
        let (name, attached) = (Arc::<str>::from("eth0"), BTreeSet::from([2]));
        let (names, same) = ([Arc::clone(&name)], node(|_| {}));
        let looks = |sent: &[(u64, u64)], node: &Node, attached: &BTreeSet<u32>| {
            let mut answers = Answers::default();
            let look = |answers: &mut Answers, (taken, lost)| {
                answers.look(&names, node, attached, |_| Some(SentBack { taken, lost }))
            };
            let found: Vec<bool> = sent.iter().map(|sent| look(&mut answers, *sent)).collect();
            assert_eq!(answers.are_lost(&name, node), found.contains(&true));
            (found, answers)
        };
        let found = |sent: &[(u64, u64)]| looks(sent, &same, &attached).0;
        assert_eq!(found(&[(0, 9), (0, 9)]), [false, false], "of before it was attached, or quiet");
        assert_eq!(found(&[(0, 9), (1, 20)]), [false, false], "its queue was full");
        assert_eq!(found(&[(5, 9), (5, 10), (5, 16), (5, 17)]), [false, false, false, true], "many");
        let burst = [(0, 0), (0, 0), (0, 9), (0, 9), (0, 9)];
        assert_eq!(found(&burst), [false; 5], "all were lost at once, and none were sent since");
        let lost = [(0, 0), (0, 9), (0, 9), (0, 10), (0, 11)];
        assert_eq!(
            found(&lost),
            [false, false, false, true, false],
            "two looks find losses, which is said once"
        );
        assert_eq!(found(&[(0, 0), (0, 900), (1, 950), (1, 990)]), [false; 4], "it takes some");
        let lost = [(0, 0), (0, 9), (0, 18)];
        assert_eq!(looks(&lost, &same, &BTreeSet::new()).0, [false; 3], "XDP is not on it");
        let card = node(|link| link.is_veth = false);
        assert_eq!(looks(&lost, &card, &attached).0, [false; 3], "no veth");
        let kept = |names: &[Arc<str>], now: &Node| {
            let (_, mut answers) = looks(&lost, &same, &attached);
            answers.keep(names, now);
            answers.are_lost(&name, &same)
        };
        assert!(kept(&names, &same) && kept(&names, &node(|link| link.xdp = Some(7))));
        assert!(!kept(&[], &same) && !kept(&names, &node(|link| link.mtu = 9000)));
        assert!(!kept(&names, &Node::default()), "it is gone");
    }
}
