//! The next hops to many backends, which share a few.

use foldhash::HashMap;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The next hop to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The node's own address towards it, of the backend's family.
    pub source: IpAddr,
    /// The device towards it; not 0.
    pub ifindex: u32,
    /// MTU of that device or route, bytes.
    pub mtu: u32,
    /// Whether the backend is a neighbour on that device: no router is in between, so its packets come back there.
    pub is_on_link: bool,
}

/// The next hop to each address of backends, as the kernel says it, and how many backends have the address. Two are equal if they have
/// the same next hops over devices of ours.
#[derive(Clone, Debug, Default)]
pub struct NextHops {
    /// By address.
    known: HashMap<IpAddr, Known>,
    /// Each answer once: there are far fewer than addresses.
    answers: Vec<Answer>,
    /// The index of each answer.
    places: HashMap<Option<Hop>, u32>,
}

/// What is known about an address. There may be a million of them.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The number of backends with this address.
    backends: u32,
    /// The index of the answer.
    answer: u32,
}

/// What the kernel says of some addresses.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// The next hop, over any device; `None`: there is none.
    hop: Option<Hop>,
    /// Whether its device is one of ours.
    is_ours: bool,
}

impl NextHops {
    /// The next hop to an address; `None`: it is not known, or there is none over a device of ours.
    pub fn get(&self, address: &IpAddr) -> Option<&Hop> {
        self.answer(self.known.get(address)?).filter(|answer| answer.is_ours)?.hop.as_ref()
    }

    /// The next hops over devices of ours, by address, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &Hop)> {
        self.with_hop().filter_map(|(address, hop, is_ours)| is_ours.then_some((address, hop)))
    }

    /// The next hops over other devices, by address, in any order.
    pub fn beyond(&self) -> impl Iterator<Item = (IpAddr, &Hop)> {
        self.with_hop().filter_map(|(address, hop, is_ours)| (!is_ours).then_some((address, hop)))
    }

    /// What the kernel said of an address, for devices of others, too. The outer `None`: it is not known.
    pub fn said(&self, address: &IpAddr) -> Option<Option<Hop>> {
        Some(self.answer(self.known.get(address)?)?.hop)
    }

    /// The distinct next hops over devices of ours.
    pub fn distinct(&self) -> impl Iterator<Item = &Hop> {
        self.answers.iter().filter(|answer| answer.is_ours).filter_map(|answer| answer.hop.as_ref())
    }

    /// Notes an address, how many backends have it, and what the kernel says of it. A device is one of ours unless
    /// [`NextHops::keep_to`] says otherwise.
    pub fn put(&mut self, address: IpAddr, backends: u32, hop: Option<Hop>) {
        let answer = *self.places.entry(hop).or_insert_with(|| {
            self.answers.push(Answer { hop, is_ours: true });
            (self.answers.len() - 1) as u32
        });
        self.known.insert(address, Known { backends, answer });
    }

    /// Counts the backends of a known address that came and went. Returns how many have it now.
    pub fn count(&mut self, address: &IpAddr, came: u32, went: u32) -> u32 {
        let Some(known) = self.known.get_mut(address) else { return 0 };
        known.backends = (known.backends + came).saturating_sub(went);
        known.backends
    }

    /// Forgets an address.
    pub fn remove(&mut self, address: &IpAddr) {
        self.known.remove(address);
    }

    /// Only these devices are ours from now on, if they were before.
    pub fn keep_to(&mut self, devices: &BTreeSet<u32>) {
        for answer in &mut self.answers {
            answer.is_ours &= answer.hop.is_some_and(|hop| devices.contains(&hop.ifindex));
        }
    }

    fn answer(&self, known: &Known) -> Option<&Answer> {
        self.answers.get(known.answer as usize)
    }

    /// Addresses with a next hop, and whether its device is ours.
    fn with_hop(&self) -> impl Iterator<Item = (IpAddr, &Hop, bool)> {
        self.known.iter().filter_map(|(address, known)| {
            let answer = self.answer(known)?;
            Some((*address, answer.hop.as_ref()?, answer.is_ours))
        })
    }
}

impl FromIterator<(IpAddr, Hop)> for NextHops {
    fn from_iter<I: IntoIterator<Item = (IpAddr, Hop)>>(hops: I) -> Self {
        let mut this = Self::default();
        hops.into_iter().for_each(|(address, hop)| this.put(address, 1, Some(hop)));
        this
    }
}

impl PartialEq for NextHops {
    fn eq(&self, other: &Self) -> bool {
        self.iter().count() == other.iter().count()
            && self.iter().all(|(address, hop)| other.get(&address) == Some(hop))
    }
}

impl Eq for NextHops {}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(ifindex: u32) -> Hop {
        Hop { source: [192, 0, 2, 1].into(), ifindex, mtu: 1500, is_on_link: true }
    }

    fn at(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    #[test]
    fn an_address_takes_little_and_each_answer_is_there_once() {
        assert!(size_of::<(IpAddr, Known)>() <= 28);
        let hops: NextHops = (0..100).map(|host| (at(host), hop(u32::from(host % 2)))).collect();
        assert_eq!((hops.answers.len(), hops.iter().count()), (2, 100));
        assert_eq!((hops.get(&at(7)), hops.get(&at(200))), (Some(&hop(1)), None));
    }

    #[test]
    fn next_hops_over_devices_that_are_not_ours_are_known_and_do_not_count() {
        let mut hops: NextHops = [(at(1), hop(1)), (at(2), hop(2))].into_iter().collect();
        hops.put(at(3), 1, None);
        let all = hops.clone();
        hops.keep_to(&[2, 7].into());
        assert_eq!((hops.get(&at(1)), hops.get(&at(2)), hops.get(&at(3))), (None, Some(&hop(2)), None));
        assert_eq!(hops.beyond().collect::<Vec<_>>(), [(at(1), &hop(1))]);
        assert_eq!([1, 3, 9].map(|host| hops.said(&at(host))), [Some(Some(hop(1))), Some(None), None]);
        assert_eq!(hops.distinct().collect::<Vec<_>>(), [&hop(2)]);
        assert!(hops != all && hops == [(at(2), hop(2))].into_iter().collect());
        hops.keep_to(&[1, 2].into());
        assert_eq!(hops.get(&at(1)), None, "it was given up");
    }

    #[test]
    fn an_address_is_counted() {
        let mut hops: NextHops = [(at(1), hop(1))].into_iter().collect();
        assert_eq!([hops.count(&at(1), 2, 1), hops.count(&at(1), 0, 2), hops.count(&at(9), 1, 0)], [2, 0, 0]);
        hops.remove(&at(1));
        assert_eq!(hops.said(&at(1)), None);
    }
}
