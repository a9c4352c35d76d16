//! ARP between Ethernet and IPv4 (RFC 826).

use core::net::Ipv4Addr;

/// Bytes of a message.
pub const BYTES: usize = 28;
/// EtherType of ARP.
pub const ETHER_TYPE: u16 = 0x0806;
/// [`Message::operation`]: who has the target's address?
pub const REQUEST: u16 = 1;
/// [`Message::operation`]: the sender has its address.
pub const REPLY: u16 = 2;

/// The link address of every host of a segment.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const HEADING: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// [`REQUEST`], [`REPLY`], or another one of the registry.
    pub operation: u16,
    /// Link address of the sender.
    pub sender_link: [u8; 6],
    /// IPv4 address of the sender; zero in a probe (RFC 5227 section 1.1).
    pub sender: [u8; 4],
    /// Link address of the target; unspecified in a request.
    pub target_link: [u8; 6],
    /// IPv4 address of the target.
    pub target: [u8; 4],
}

/// What a message says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Its sender asks who has the target's address.
    Asks,
    /// Its sender has the sender's address: a reply, or an announcement (RFC 5227 section 3).
    Claims,
}

impl Message {
    /// Reads a message; `None`: not about IPv4 on Ethernet.
    #[inline(always)]
    pub fn read(bytes: &[u8; BYTES]) -> Option<Self> {
        let b = bytes;
        if [b[0], b[1], b[2], b[3], b[4], b[5]] != HEADING {
            return None;
        }
        Some(Self {
            operation: u16::from_be_bytes([b[6], b[7]]),
            sender_link: [b[8], b[9], b[10], b[11], b[12], b[13]],
            sender: [b[14], b[15], b[16], b[17]],
            target_link: [b[18], b[19], b[20], b[21], b[22], b[23]],
            target: [b[24], b[25], b[26], b[27]],
        })
    }

    /// Writes the message.
    #[inline(always)]
    pub fn write(&self, to: &mut [u8; BYTES]) {
        let [op0, op1] = self.operation.to_be_bytes();
        let [h0, h1, h2, h3, h4, h5] = HEADING;
        let ([l0, l1, l2, l3, l4, l5], [s0, s1, s2, s3]) = (self.sender_link, self.sender);
        let ([m0, m1, m2, m3, m4, m5], [t0, t1, t2, t3]) = (self.target_link, self.target);
        *to = [
            h0, h1, h2, h3, h4, h5, op0, op1, l0, l1, l2, l3, l4, l5, s0, s1, s2, s3, m0, m1, m2, m3, m4, m5,
            t0, t1, t2, t3,
        ];
    }

    /// Returns what the message says, and about which address.
    #[inline(always)]
    pub fn about(&self) -> (About, [u8; 4]) {
        match self.operation == REQUEST && self.sender != self.target {
            true => (About::Asks, self.target),
            false => (About::Claims, self.sender),
        }
    }

    /// Returns the reply to a request, from the host with this link address.
    #[inline(always)]
    pub fn reply(&self, link: [u8; 6]) -> Self {
        Self {
            operation: REPLY,
            sender_link: link,
            sender: self.target,
            target_link: self.sender_link,
            target: self.sender,
        }
    }
}

/// Bytes of [`announcement`].
pub const ANNOUNCEMENT_BYTES: usize = 14 + BYTES;

/// Returns the frame by which the host with this link address announces an address to its segment, as request or as reply:
/// some hosts believe only one of the forms (RFC 5227 section 3).
pub fn announcement(address: Ipv4Addr, link: [u8; 6], operation: u16) -> [u8; ANNOUNCEMENT_BYTES] {
    let address = address.octets();
    let target_link = if operation == REPLY { BROADCAST } else { [0; 6] };
    to_all(&Message { operation, sender_link: link, sender: address, target_link, target: address })
}

/// Returns the frame by which the host with this link address asks whether any host has an address, without a claim to
/// one of its own (RFC 5227 section 2.1.1).
pub fn probe(address: Ipv4Addr, link: [u8; 6]) -> [u8; ANNOUNCEMENT_BYTES] {
    let target = address.octets();
    to_all(&Message { operation: REQUEST, sender_link: link, sender: [0; 4], target_link: [0; 6], target })
}

/// Returns the frame by which the host with this address and link address asks who has another address.
pub fn request(address: Ipv4Addr, own: Ipv4Addr, link: [u8; 6]) -> [u8; ANNOUNCEMENT_BYTES] {
    let (sender, target) = (own.octets(), address.octets());
    to_all(&Message { operation: REQUEST, sender_link: link, sender, target_link: [0; 6], target })
}

/// Returns the frame of a message to all hosts of the segment.
fn to_all(message: &Message) -> [u8; ANNOUNCEMENT_BYTES] {
    let mut body = [0; BYTES];
    message.write(&mut body);
    let mut frame = [0; ANNOUNCEMENT_BYTES];
    frame[..6].copy_from_slice(&BROADCAST);
    frame[6..12].copy_from_slice(&message.sender_link);
    frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    frame[14..].copy_from_slice(&body);
    frame
}

/// Returns the address that the sender of a frame says it has, and the link address that it has it by; `None`: the frame says
/// nothing of the kind.
pub fn claim(frame: &[u8]) -> Option<(Ipv4Addr, [u8; 6])> {
    let message = Message::read(frame.get(14..)?.first_chunk()?)?;
    match message.about() {
        (About::Claims, address) => Some((address.into(), message.sender_link)),
        (About::Asks, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OWNER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn request() -> Message {
        Message {
            operation: REQUEST,
            sender_link: ASKER,
            sender: [192, 0, 2, 1],
            target_link: [0; 6],
            target: [192, 0, 2, 7],
        }
    }

    fn written(message: &Message) -> [u8; BYTES] {
        let mut bytes = [0xee; BYTES];
        message.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_request_as_linux_sends_it_is_read_and_answered() {
        let bytes = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7];
        assert_eq!(Message::read(&bytes), Some(request()));
        assert_eq!(written(&request()), bytes);
        let reply = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 192, 0, 2, 7, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1];
        assert_eq!(written(&request().reply(OWNER)), reply);
    }

    #[test]
    fn other_networks_are_not_read() {
        for at in 0..6 {
            let mut bytes = written(&request());
            bytes[at] ^= 0x10;
            assert_eq!(Message::read(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn a_probe_asks_and_an_announcement_claims() {
        assert_eq!(request().about(), (About::Asks, [192, 0, 2, 7]));
        let probe = Message { sender: [0; 4], ..request() };
        assert_eq!(probe.about(), (About::Asks, [192, 0, 2, 7]));
        let reply = request().reply(OWNER);
        assert_eq!(reply.about(), (About::Claims, [192, 0, 2, 7]));
        for operation in [REQUEST, REPLY] {
            let frame = announcement([192, 0, 2, 7].into(), OWNER, operation);
            let body = frame[14..].first_chunk().unwrap();
            let message = Message::read(body).unwrap();
            assert_eq!(message.about(), (About::Claims, [192, 0, 2, 7]));
            assert_eq!((message.operation, message.sender_link), (operation, OWNER));
            assert_eq!(
                (&frame[..6], &frame[6..12], &frame[12..14]),
                (&[0xff; 6][..], &OWNER[..], &[8, 6][..])
            );
        }
    }

    /// RFC 5227 section 2.1.1: the sender's address is zero, so that nobody's cache is changed.
    #[test]
    fn a_probe_claims_nothing() {
        let frame = probe([192, 0, 2, 7].into(), ASKER);
        let message = Message::read(frame[14..].first_chunk().unwrap()).unwrap();
        assert_eq!((message.sender, message.target, message.operation), ([0; 4], [192, 0, 2, 7], REQUEST));
        assert_eq!((&frame[..6], &frame[6..12], claim(&frame)), (&BROADCAST[..], &ASKER[..], None));
    }

    #[test]
    fn a_question_is_by_the_askers_own_address() {
        let frame = super::request([192, 0, 2, 7].into(), [192, 0, 2, 1].into(), ASKER);
        assert_eq!(Message::read(frame[14..].first_chunk().unwrap()), Some(request()));
        assert_eq!(claim(&frame), None);
    }

    #[test]
    fn a_reply_and_an_announcement_claim_their_senders_address() {
        let address = Ipv4Addr::new(192, 0, 2, 7);
        let reply = to_all(&request().reply(OWNER));
        assert_eq!(claim(&reply), Some((address, OWNER)));
        for operation in [REQUEST, REPLY] {
            assert_eq!(claim(&announcement(address, OWNER, operation)), Some((address, OWNER)));
        }
        assert_eq!((claim(&to_all(&request())), claim(&reply[..41])), (None, None));
    }
}
