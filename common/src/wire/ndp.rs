//! Neighbour solicitations and advertisements (RFC 4861 sections 4.3, 4.4 and 7).

use core::net::Ipv6Addr;

use super::checksum;

/// ICMPv6 type of a solicitation: who has the target's address?
pub const SOLICITATION: u8 = 135;
/// ICMPv6 type of an advertisement: its sender has the target's address.
pub const ADVERTISEMENT: u8 = 136;
/// The hop limit of both: no router has passed them on.
pub const HOP_LIMIT: u8 = 255;
/// Bytes of an advertisement with a link address.
pub const ADVERTISEMENT_BYTES: usize = 32;
/// Bytes of a message that are examined: its fixed part, and 32 bytes of options. Hosts send at most two options of 8 bytes.
pub const EXAMINED: usize = FIXED as usize + 32;

/// Bytes before the options.
const FIXED: u32 = 24;
/// Protocol number of ICMPv6.
const ICMPV6: u8 = 58;
/// Options: link address of the sender (solicitation), of the target (advertisement).
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// Flags of an advertisement: it answers a solicitation; it replaces what the receiver knows. We are no router.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// All hosts of a segment, ff02::1.
pub const ALL_HOSTS: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The link address of [`ALL_HOSTS`] (RFC 2464 section 7).
pub const ALL_HOSTS_LINK: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Where a message came from and went, by its IPv6 header.
#[derive(Clone, Copy, Debug)]
pub struct Heading<'a> {
    /// Source; unspecified during duplicate address detection (RFC 4862 section 5.4).
    pub source: &'a [u8; 16],
    /// Destination.
    pub destination: &'a [u8; 16],
    /// Hop limit.
    pub hop_limit: u8,
    /// ICMPv6 bytes, whether examined or not.
    pub length: u32,
}

/// Returns the target of a message that is long enough to have one. It is not checked any further.
#[inline(always)]
pub fn target(message: &[u8; EXAMINED], length: u32) -> Option<[u8; 16]> {
    let m = message;
    (length >= FIXED).then_some([
        m[8], m[9], m[10], m[11], m[12], m[13], m[14], m[15], m[16], m[17], m[18], m[19], m[20], m[21],
        m[22], m[23],
    ])
}

/// Whom a solicitation is to be answered to: one number, so that all of its values are defined in the kernel's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker(u32);

impl Asker {
    /// The message is to be dropped.
    pub const NOBODY: Self = Self(0);
    /// The address is being tried by the sender, who has none yet: everybody on the segment is answered.
    pub const EVERYBODY: Self = Self(1);
    /// The message has no link address; the frame's source is the sender's.
    pub const FRAME: Self = Self(2);

    /// The link address is in the message, at this offset.
    pub const fn at(offset: u32) -> Self {
        Self(offset)
    }

    /// Returns the offset of the link address in the message; `None`: none is to be read there.
    #[inline(always)]
    pub const fn link_at(self) -> Option<u32> {
        if self.0 >= FIXED { Some(self.0) } else { None }
    }
}

/// Checks a solicitation as RFC 4861 section 7.1.1 demands, except for its checksum.
#[inline(always)]
pub fn solicitation(heading: &Heading<'_>, message: &[u8; EXAMINED]) -> Asker {
    if !is_valid(heading, message) || message[8] == 0xff || heading.source[0] == 0xff {
        return Asker::NOBODY;
    }
    let mut walk = Walk { next: FIXED, link_at: 0, is_valid: true };
    walk.option::<24>(message, heading.length);
    walk.option::<32>(message, heading.length);
    walk.option::<40>(message, heading.length);
    walk.option::<48>(message, heading.length);
    if !walk.is_valid {
        return Asker::NOBODY;
    }
    if is_unspecified(heading.source) {
        let is_trial = walk.link_at == 0 && is_solicited_node(heading.destination);
        return if is_trial { Asker::EVERYBODY } else { Asker::NOBODY };
    }
    if walk.link_at == 0 { Asker::FRAME } else { Asker::at(walk.link_at) }
}

/// Whether an advertisement is believed (RFC 4861 section 7.1.2), except for its checksum.
#[inline(always)]
pub fn is_advertisement(heading: &Heading<'_>, message: &[u8; EXAMINED]) -> bool {
    is_valid(heading, message)
}

#[inline(always)]
fn is_valid(heading: &Heading<'_>, message: &[u8; EXAMINED]) -> bool {
    heading.hop_limit == HOP_LIMIT && message[1] == 0 && heading.length >= FIXED
}

/// Whether an address is a group that asks for addresses (RFC 4291 section 2.7.1).
#[inline(always)]
fn is_solicited_node(a: &[u8; 16]) -> bool {
    let is_group = [a[0], a[1]] == [0xff, 2] && [a[11], a[12]] == [1, 0xff];
    is_group && (a[2] | a[3] | a[4] | a[5] | a[6] | a[7] | a[8] | a[9] | a[10]) == 0
}

#[inline(always)]
fn is_unspecified(address: &[u8; 16]) -> bool {
    let mut bits = 0;
    let mut i = 0;
    while i < 16 {
        bits |= address[i];
        i += 1;
    }
    bits == 0
}

/// A walk over options, which begin at multiples of 8 bytes.
struct Walk {
    /// Where the next option begins.
    next: u32,
    /// Where the sender's link address is; 0: none was met.
    link_at: u32,
    is_valid: bool,
}

impl Walk {
    /// Reads the option that begins at byte `AT`, if one does.
    #[inline(always)]
    fn option<const AT: usize>(&mut self, message: &[u8; EXAMINED], length: u32) {
        if self.next != AT as u32 || self.next >= length {
            return;
        }
        let m = message;
        let bytes = u32::from(m[AT + 1]) * 8;
        if bytes == 0 || self.next + bytes > length {
            self.is_valid = false;
            return;
        }
        if m[AT] == SOURCE_LINK && bytes == 8 {
            self.link_at = AT as u32 + 2;
            // A group's link address: our answer would go to all of them.
            self.is_valid = m[AT + 2] & 1 == 0;
            if !self.is_valid {
                return;
            }
        }
        self.next += bytes;
    }
}

/// Returns an advertisement of the target's link address, with checksum 0. It replaces what its receivers know.
#[inline(always)]
pub fn advertisement(target: &[u8; 16], link: [u8; 6], is_solicited: bool) -> [u8; ADVERTISEMENT_BYTES] {
    let flags = if is_solicited { SOLICITED | OVERRIDE } else { OVERRIDE };
    let (t, l) = (target, link);
    [
        ADVERTISEMENT,
        0,
        0,
        0,
        flags,
        0,
        0,
        0,
        t[0],
        t[1],
        t[2],
        t[3],
        t[4],
        t[5],
        t[6],
        t[7],
        t[8],
        t[9],
        t[10],
        t[11],
        t[12],
        t[13],
        t[14],
        t[15],
        TARGET_LINK,
        1,
        l[0],
        l[1],
        l[2],
        l[3],
        l[4],
        l[5],
    ]
}

/// Returns the group that asks for an address (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Sums words of two bytes; a byte behind the last one is the first half of another.
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + last
}

/// Bytes of [`announcement`].
pub const ANNOUNCEMENT_BYTES: usize = 14 + 40 + ADVERTISEMENT_BYTES;

/// Returns the frame by which the host with this link address announces an address to its segment.
pub fn announcement(address: Ipv6Addr, link: [u8; 6]) -> [u8; ANNOUNCEMENT_BYTES] {
    let target = address.octets();
    let mut message = advertisement(&target, link, false);
    let sum = sum(&target) + sum(&ALL_HOSTS) + sum(&message) + ADVERTISEMENT_BYTES as u32 + u32::from(ICMPV6);
    message[2..4].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
    let mut frame = [0; ANNOUNCEMENT_BYTES];
    frame[..6].copy_from_slice(&ALL_HOSTS_LINK);
    frame[6..12].copy_from_slice(&link);
    frame[12..20].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, ADVERTISEMENT_BYTES as u8]);
    frame[20..22].copy_from_slice(&[ICMPV6, HOP_LIMIT]);
    frame[22..38].copy_from_slice(&target);
    frame[38..54].copy_from_slice(&ALL_HOSTS);
    frame[54..].copy_from_slice(&message);
    frame
}

/// Bytes of [`probe`].
pub const PROBE_BYTES: usize = 14 + 40 + FIXED as usize;

/// Returns the frame by which the host with this link address asks whether any host has an address, without a claim to
/// one of its own (RFC 4862 section 5.4.2).
pub fn probe(address: Ipv6Addr, link: [u8; 6]) -> [u8; PROBE_BYTES] {
    let (target, group) = (address.octets(), solicited_node(address).octets());
    let mut message = [0; FIXED as usize];
    message[0] = SOLICITATION;
    message[8..].copy_from_slice(&target);
    let sum = sum(&group) + sum(&message) + FIXED + u32::from(ICMPV6);
    message[2..4].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
    let [.., a, b, c, d] = group;
    let mut frame = [0; PROBE_BYTES];
    frame[..6].copy_from_slice(&[0x33, 0x33, a, b, c, d]);
    frame[6..12].copy_from_slice(&link);
    frame[12..20].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, FIXED as u8]);
    frame[20..22].copy_from_slice(&[ICMPV6, HOP_LIMIT]);
    frame[38..54].copy_from_slice(&group);
    frame[54..].copy_from_slice(&message);
    frame
}

/// Bytes of [`question`].
pub const QUESTION_BYTES: usize = PROBE_BYTES + 8;

/// Returns the frame by which the host with this address and link address asks who has another address (RFC 4861 section 4.3).
pub fn question(address: Ipv6Addr, own: Ipv6Addr, link: [u8; 6]) -> [u8; QUESTION_BYTES] {
    const LENGTH: u8 = FIXED as u8 + 8;
    let (group, own) = (solicited_node(address).octets(), own.octets());
    let mut frame = [0; QUESTION_BYTES];
    frame[..PROBE_BYTES].copy_from_slice(&probe(address, link));
    frame[19] = LENGTH;
    frame[22..38].copy_from_slice(&own);
    frame[PROBE_BYTES..PROBE_BYTES + 2].copy_from_slice(&[SOURCE_LINK, 1]);
    frame[PROBE_BYTES + 2..].copy_from_slice(&link);
    frame[56..58].fill(0);
    let sum = sum(&own) + sum(&group) + sum(&frame[54..]) + u32::from(LENGTH) + u32::from(ICMPV6);
    frame[56..58].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
    frame
}

/// Returns the address that the sender of an advertisement says it has, and the frame's source; `None`: the frame is no
/// advertisement that is believed (RFC 4861 section 7.1.2).
pub fn claim(frame: &[u8]) -> Option<(Ipv6Addr, [u8; 6])> {
    let (header, message) = frame.split_first_chunk::<54>()?;
    let length = u16::from_be_bytes([header[18], header[19]]);
    let message = message.get(..usize::from(length))?;
    if header[12..14] != [0x86, 0xdd] || header[20] != ICMPV6 || message.first() != Some(&ADVERTISEMENT) {
        return None;
    }
    let mut examined = [0; EXAMINED];
    let examinable = message.len().min(EXAMINED);
    examined[..examinable].copy_from_slice(&message[..examinable]);
    let (source, destination) = (header[22..38].first_chunk()?, header[38..54].first_chunk()?);
    let heading = Heading { source, destination, hop_limit: header[21], length: length.into() };
    let sum = sum(source) + sum(destination) + sum(message) + u32::from(length) + u32::from(ICMPV6);
    if !is_advertisement(&heading, &examined) || checksum::fold(sum) != u16::MAX {
        return None;
    }
    Some((Ipv6Addr::from(*message[8..].first_chunk::<16>()?), header[6..12].try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const TARGET: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
    const ASKER: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    const GROUP: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 1, 2, 3];

    /// A solicitation with these options.
    fn message(options: &[u8]) -> ([u8; EXAMINED], u32) {
        let mut message = [0; EXAMINED];
        message[0] = SOLICITATION;
        message[8..24].copy_from_slice(&TARGET);
        message[24..24 + options.len()].copy_from_slice(options);
        (message, 24 + options.len() as u32)
    }

    fn asked(options: &[u8], change: impl FnOnce(&mut Heading<'_>, &mut [u8; EXAMINED])) -> Asker {
        let (mut message, length) = message(options);
        let mut heading = Heading { source: &ASKER, destination: &GROUP, hop_limit: HOP_LIMIT, length };
        change(&mut heading, &mut message);
        solicitation(&heading, &message)
    }

    const WITH_LINK: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 2];
    /// RFC 3971 section 5.3.2, as Linux sends it to find its own solicitations (RFC 7527).
    const NONCE: [u8; 8] = [14, 1, 1, 2, 3, 4, 5, 6];

    #[test]
    fn the_asker_is_who_the_message_says() {
        assert_eq!(asked(&WITH_LINK, |_, _| {}), Asker::at(26));
        assert_eq!(asked(&[], |_, _| {}), Asker::FRAME);
        assert_eq!(asked(&[NONCE, WITH_LINK].concat(), |_, _| {}), Asker::at(34));
        assert_eq!(asked(&[WITH_LINK, NONCE].concat(), |_, _| {}), Asker::at(26));
        let last = [NONCE, NONCE, NONCE, WITH_LINK].concat();
        assert_eq!(asked(&last, |_, _| {}), Asker::at(50));
        assert_eq!(Asker::at(50).link_at(), Some(50));
        assert_eq!([Asker::NOBODY, Asker::EVERYBODY, Asker::FRAME].map(Asker::link_at), [None; 3]);
        assert_eq!(asked(&[[14, 2, 1, 2, 3, 4, 5, 6], NONCE].concat(), |_, _| {}), Asker::FRAME);
        let is_trial = |heading: &mut Heading<'_>, _: &mut _| heading.source = &[0; 16];
        assert_eq!(asked(&NONCE, is_trial), Asker::EVERYBODY);
    }

    #[test]
    fn what_the_rfc_has_dropped_is_dropped() {
        assert_eq!(
            asked(&WITH_LINK, |heading, _| heading.hop_limit = 254),
            Asker::NOBODY,
            "from beyond a router"
        );
        assert_eq!(asked(&WITH_LINK, |_, message| message[1] = 1), Asker::NOBODY, "a code");
        assert_eq!(asked(&[], |heading, _| heading.length = 23), Asker::NOBODY, "too short");
        assert_eq!(asked(&WITH_LINK, |_, message| message[8] = 0xff), Asker::NOBODY, "about a group");
        assert_eq!(
            asked(&WITH_LINK, |_, message| message[25] = 0),
            Asker::NOBODY,
            "an option without length"
        );
        assert_eq!(
            asked(&WITH_LINK, |_, message| message[25] = 2),
            Asker::NOBODY,
            "an option beyond the end"
        );
        assert_eq!(asked(&WITH_LINK, |_, message| message[26] |= 1), Asker::NOBODY, "a group's link address");
        assert_eq!(
            asked(&WITH_LINK, |heading, _| heading.source = &[0; 16]),
            Asker::NOBODY,
            "a trial with address"
        );
        assert_eq!(asked(&[], |heading, _| heading.source = &GROUP), Asker::NOBODY, "from a group");
        let unicast = |heading: &mut Heading<'_>, _: &mut _| {
            (heading.source, heading.destination) = (&[0; 16], &TARGET);
        };
        assert_eq!(asked(&[], unicast), Asker::NOBODY, "a trial that only one host gets");
        let to_all = |heading: &mut Heading<'_>, _: &mut _| {
            (heading.source, heading.destination) = (&[0; 16], &ALL_HOSTS);
        };
        assert_eq!(asked(&[], to_all), Asker::NOBODY, "a trial that all hosts get");
    }

    #[test]
    fn an_announcement_sums_up_and_says_what_it_should() {
        let address = Ipv6Addr::from(TARGET);
        let frame = announcement(address, LINK);
        let message = &frame[54..];
        let total = sum(&frame[22..54]) + sum(message) + 32 + 58;
        assert_eq!(checksum::fold(total), 0xffff);
        assert_eq!((message[0], message[4]), (ADVERTISEMENT, OVERRIDE));
        assert_eq!((&message[8..24], &message[26..32]), (&TARGET[..], &LINK[..]));
        assert_eq!(solicited_node(address).octets(), GROUP);
        assert_eq!(advertisement(&TARGET, LINK, true)[4], SOLICITED | OVERRIDE);
    }

    #[test]
    fn a_probe_is_what_everybody_is_to_answer() {
        let frame = probe(TARGET.into(), LINK);
        let mut message = [0; EXAMINED];
        message[..24].copy_from_slice(&frame[54..]);
        let source = frame[22..38].first_chunk().unwrap();
        let destination = frame[38..54].first_chunk().unwrap();
        let heading = Heading { source, destination, hop_limit: frame[21], length: 24 };
        assert_eq!(solicitation(&heading, &message), Asker::EVERYBODY);
        assert_eq!((target(&message, 24), destination), (Some(TARGET), &GROUP));
        let words = sum(source) + sum(destination) + sum(&frame[54..]) + 24 + u32::from(ICMPV6);
        assert_eq!(checksum::fold(words), u16::MAX);
        assert_eq!(claim(&frame), None);
    }

    #[test]
    fn a_question_is_by_the_askers_own_address() {
        let frame = question(TARGET.into(), ASKER.into(), LINK);
        let mut message = [0; EXAMINED];
        message[..32].copy_from_slice(&frame[54..]);
        let heading = Heading { source: &ASKER, destination: &GROUP, hop_limit: frame[21], length: 32 };
        assert_eq!((&frame[22..38], &frame[38..54]), (&ASKER[..], &GROUP[..]));
        assert_eq!((solicitation(&heading, &message), target(&message, 32)), (Asker::at(26), Some(TARGET)));
        let words = sum(&ASKER) + sum(&GROUP) + sum(&frame[54..]) + 32 + u32::from(ICMPV6);
        assert_eq!((checksum::fold(words), claim(&frame)), (u16::MAX, None));
    }

    #[test]
    fn an_announcement_claims_its_target_and_nothing_else_does() {
        let frame = announcement(TARGET.into(), LINK);
        assert_eq!(claim(&frame), Some((TARGET.into(), LINK)));
        for at in 12..frame.len() {
            let mut other = frame;
            other[at] ^= 1;
            // Version, traffic class and flow label say nothing.
            let is_same = (14..18).contains(&at);
            assert_eq!(claim(&other).is_some(), is_same, "byte {at}");
        }
        (0..frame.len()).for_each(|bytes| assert_eq!(claim(&frame[..bytes]), None));
    }
}
