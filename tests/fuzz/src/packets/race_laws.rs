//! Invariants of packets that leave when two steps are taken at the same moment. Which of the two a packet answers is not known,
//! so each law holds of one or the other.

use ::tests::compare::describe;
use ::tests::packet::{Segment, flag};
use ::tests::tuple::backend_tuple;
use common::maps::flow::BackendTuple;

use super::hosts::{self, Ends};
use super::known::{Known, addresses, data_of};
use super::packet_laws;

/// Two steps at the same moment.
#[derive(Debug)]
pub struct Race {
    /// The packets that arrived: one or two, beside orders.
    pub frames: Vec<Vec<u8>>,
    /// The connections that they and the orders are about.
    pub parties: Vec<Ends>,
    /// What was kept of the hello of each before, and what is kept now.
    pub hellos: Vec<[Vec<u8>; 2]>,
}

/// Checks a packet that leaves. `holder` returns the connection that now has a port, by the maps.
pub fn check(known: &Known, race: &Race, frame: &[u8], holder: impl Fn(&BackendTuple) -> Option<Ends>) {
    let (from, to) = addresses(frame).unwrap_or_else(|| panic!("sent\n{}", describe(frame)));
    shape(race, frame);
    if packet_laws::is_icmp(frame) {
        let asks = |given: &Vec<u8>| {
            packet_laws::is_icmp(given) || addresses(given).is_some_and(|(_, vip)| vip.ip() == from.ip())
        };
        assert!(race.frames.iter().any(asks), "ICMP that nothing asks for\n{}", describe(frame));
        return;
    }
    if !hosts::is_source(from.ip()) {
        let spoke = known.clients.get(&(to, from)).is_some_and(|client| client.spoke);
        assert!(spoke && race.parties.contains(&(to, from)), "to no client of theirs\n{}", describe(frame));
        return;
    }
    // One whose header is mangled passes as it is.
    let Some(segment) = Segment::parse(frame) else { return };
    let tuple = backend_tuple(to, from);
    if segment.flags & (flag::SYN | flag::ACK) == flag::SYN {
        return dialled(race, &segment);
    }
    let last = known.backends.get(&tuple).map(|backend| backend.connection);
    let owners: Vec<Ends> = holder(&tuple).into_iter().chain(last).collect();
    let own: Vec<&Ends> = owners.iter().filter(|owner| race.parties.contains(owner)).collect();
    let answers = |given: &Vec<u8>| addresses(given) == Some((to, from));
    if own.is_empty() {
        let answer = race.frames.iter().any(answers) && segment.payload.is_empty();
        assert!(answer, "to another client's backend\n{}", describe(frame));
    }
    for (offset, byte) in (0..).zip(&segment.payload) {
        let seq = segment.seq.wrapping_add(offset);
        let sent = own.iter().any(|ends| known.clients[ends].has_sent(seq, *byte));
        assert!(sent, "a byte that the client did not send\n{}", describe(frame));
    }
}

/// Checks lengths and checksums: right, or as wrong as those of the packet that this one was.
fn shape(race: &Race, frame: &[u8]) {
    let same = race.frames.iter().filter(|given| given.len() == frame.len());
    if !same.clone().any(|given| packet_laws::malformed(frame, Some(given)).is_none()) {
        assert_eq!(packet_laws::malformed(frame, None), None, "\n{}", describe(frame));
    }
}

/// Checks a SYN to a backend, which must be of the tenant that a hello names. One that came in this race and is no longer kept may
/// have named any: what the backend gets shows it.
fn dialled(race: &Race, syn: &Segment) {
    let tenant = hosts::tenant_of(syn.to);
    let right = race.parties.iter().zip(&race.hellos).any(|(ends, [before, after])| {
        let owner = |hello: &[u8]| hosts::owner(ends.1.port(), hello);
        let speaks = |frame: &Vec<u8>| {
            addresses(frame) == Some(*ends) && data_of(frame).is_some_and(|(_, data)| !data.is_empty())
        };
        let unknown = after.is_empty() && owner(after).is_none() && race.frames.iter().any(speaks);
        unknown || owner(before) == tenant || owner(after) == tenant
    });
    assert!(tenant.is_some() && right, "MISROUTE: a SYN to {}", syn.to);
}

#[cfg(test)]
mod tests {
    use ::tests::packet::segment;

    use super::super::known::hellos;
    use super::*;

    /// A connection by TLS that has sent tenant a's hello, and the tuple of its backend.
    struct Scene {
        known: Known,
        race: Race,
        own: Ends,
        backend: (std::net::SocketAddr, std::net::SocketAddr),
    }

    const SEQ: u32 = 1000;

    impl Scene {
        fn new() -> Self {
            let own = hosts::ends(0);
            let hello = hellos()[0].clone();
            let mut given = segment(own.0, own.1).flags(flag::ACK);
            (given.seq, given.payload) = (SEQ, hello.clone());
            let frame = given.bytes();
            let mut known = Known::new();
            known.clients.entry(own).or_default().speaks(&frame);
            let (_, _, address) = hosts::backend(0);
            let port = ::tests::addresses::BACKEND_PORT;
            let source = ::tests::addresses::balancer(
                ::tests::addresses::FAMILIES[0],
                ::tests::addresses::TENANT_NETS[0],
            );
            let backend = ((address, port).into(), (source, 2000).into());
            let race = Race { frames: vec![frame], parties: vec![own], hellos: vec![[Vec::new(), hello]] };
            Self { known, race, own, backend }
        }

        /// A segment from us to the backend.
        fn out(&self) -> Segment {
            let mut out = segment(self.backend.1, self.backend.0).flags(flag::ACK);
            (out.seq, out.payload) = (SEQ, hellos()[0][..40].to_vec());
            out
        }

        /// Whether the laws allow this frame; `holder` has the port to the backend.
        fn allows(&self, frame: &[u8], holder: Ends) -> bool {
            let checked = || check(&self.known, &self.race, frame, |_| Some(holder));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(checked)).is_ok()
        }
    }

    #[test]
    fn bytes_that_the_client_sent_at_their_number_pass_to_its_backend_and_no_others() {
        let scene = Scene::new();
        let right = scene.out();
        assert!(scene.allows(&right.bytes(), scene.own));
        assert!(!scene.allows(&right.bytes(), hosts::ends(1)), "another client's backend");
        let mut moved = right.clone();
        moved.seq += 1;
        assert!(!scene.allows(&moved.bytes(), scene.own), "at another number");
        let mut altered = right;
        altered.payload[20] ^= 1;
        assert!(!scene.allows(&altered.bytes(), scene.own), "another byte");
    }

    #[test]
    fn a_wrong_checksum_or_length_passes_only_as_that_of_the_packet_that_it_was() {
        let mut scene = Scene::new();
        let mut frame = scene.out().bytes();
        frame[34 + 16] ^= 0x80;
        assert!(!scene.allows(&frame, scene.own), "of TCP");
        scene.race.frames.push(frame.clone());
        assert!(scene.allows(&frame, scene.own), "as before");
        let mut frame = scene.out().bytes();
        frame[14 + 10] ^= 1;
        assert!(!scene.allows(&frame, scene.own), "of IPv4");
        let mut frame = scene.out().bytes();
        frame.push(0);
        assert!(!scene.allows(&frame, scene.own), "length");
    }

    #[test]
    fn packets_to_clients_are_for_those_whose_packets_arrived() {
        let mut scene = Scene::new();
        let other = hosts::ends(1);
        let to = |ends: Ends| segment(ends.1, ends.0).flags(flag::RST).bytes();
        assert!(scene.allows(&to(scene.own), scene.own));
        scene.known.clients.entry(other).or_default().spoke = true;
        assert!(!scene.allows(&to(other), scene.own), "it sent nothing now");
        scene.race.parties.push(hosts::ends(2));
        assert!(!scene.allows(&to(hosts::ends(2)), scene.own), "it never sent anything");
    }

    #[test]
    fn a_syn_goes_to_the_tenant_that_the_hello_names() {
        let mut scene = Scene::new();
        let source = scene.backend.1;
        let syn = |backend: usize| {
            let (_, _, address) = hosts::backend(backend);
            let to = (address, ::tests::addresses::BACKEND_PORT).into();
            segment(source, to).flags(flag::SYN).bytes()
        };
        assert!(scene.allows(&syn(0), scene.own));
        assert!(!scene.allows(&syn(4), scene.own), "another tenant's");
        let nobodys = segment(source, (hosts::backend(0).2, 9).into()).flags(flag::SYN).bytes();
        assert!(!scene.allows(&nobodys, scene.own), "no backend");
        scene.race.hellos[0][1].clear();
        assert!(scene.allows(&syn(4), scene.own), "the hello is no longer known");
        scene.race.frames[0].truncate(14 + 20 + 20);
        assert!(!scene.allows(&syn(0), scene.own) && !scene.allows(&syn(4), scene.own), "no hello came");
        scene.race.hellos[0] = [hellos()[0].clone(), Vec::new()];
        assert!(scene.allows(&syn(0), scene.own) && !scene.allows(&syn(4), scene.own), "the hello of before");
        scene.race.frames[0] = segment(hosts::ends(1).0, hosts::ends(1).1).payload(b"x").bytes();
        assert!(!scene.allows(&syn(4), scene.own), "another client's data");
        scene.race.parties[0] = hosts::ends(2);
        assert!(scene.allows(&syn(0), scene.own) && !scene.allows(&syn(4), scene.own), "a TCP listener's");
    }

    #[test]
    fn each_reset_has_its_reason() {
        use common::reason::Reason::{ExpireTrial, ForwardClient, HelloEvicted, RouteNone};
        let reset = segment(hosts::ends(0).1, hosts::ends(0).0).flags(flag::RST).bytes();
        let allows = |counted: &[_], resets: usize| {
            let frames = vec![reset.as_slice(); resets];
            std::panic::catch_unwind(|| packet_laws::resets(counted, frames.into_iter())).is_ok()
        };
        assert!(allows(&[(RouteNone, 1)], 1) && allows(&[(ExpireTrial, 1)], 2));
        assert!(allows(&[(ForwardClient, 1)], 0) && allows(&[(HelloEvicted, 1)], 1));
        assert!(!allows(&[(ForwardClient, 1)], 1), "without a reason");
        assert!(!allows(&[(RouteNone, 1)], 0), "a reason without its RST");
    }

    #[test]
    fn what_two_orders_make_of_a_stream_is_known_only_if_it_is_the_same() {
        let scene = Scene::new();
        let mut backend = super::super::known::Backend::new(scene.own, SEQ - 1);
        let part = |from: usize, to: usize| {
            let mut part = scene.out();
            (part.seq, part.payload) = (SEQ + from as u32, hellos()[0][from..to].to_vec());
            part
        };
        backend.receives_at_once(vec![part(30, 60), part(0, 40)]);
        assert_eq!((&*backend.stream, backend.doubtful), (&hellos()[0][..60], false));
        let mut altered = part(60, 70);
        altered.payload[3] ^= 1;
        backend.receives_at_once(vec![part(60, 70), altered]);
        assert!(backend.doubtful);
    }
}
