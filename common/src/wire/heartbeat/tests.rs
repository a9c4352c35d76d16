use proptest::prelude::*;

use super::*;
use crate::maps::address::Address;

const KEYS: [CookieKey; 2] = [CookieKey { k0: 1, k1: 2 }, CookieKey { k0: 3, k1: 4 }];

fn question() -> Heartbeat {
    Heartbeat {
        kind: ASK,
        key: 1,
        entries: 0,
        sender: 0x0102_0304_0506_0708,
        receiver: 0,
        nonce: 0x1112_1314_1516_1718,
        boot: 0x2122_2324_2526_2728,
        stamp_age_ms: 0,
        digest: 0x3132_3334_3536_3738,
    }
}

fn signed(heartbeat: &Heartbeat) -> [u8; BYTES] {
    let mut bytes = [0xee; BYTES];
    heartbeat.write(&mut bytes);
    sign(&mut bytes, &KEYS[usize::from(heartbeat.key)]);
    bytes
}

/// The same by another implementation of the hash.
fn tag_of(bytes: &[u8], key: &CookieKey) -> u64 {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher24::new_with_keys(key.k0, key.k1);
    hasher.write(bytes);
    hasher.finish()
}

#[test]
fn fields_are_where_the_table_says() {
    let answer =
        Heartbeat { kind: ANSWER, receiver: 0x4142_4344_4546_4748, stamp_age_ms: 0x5152_5354, ..question() };
    let expected: [&[u8]; 10] = [
        b"VSB1",
        &[2, 1, 0, 0],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        b"ABCDEFGH",
        &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
        &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28],
        b"QRST",
        &[0; 4],
        b"12345678",
        &[],
    ];
    let bytes = signed(&answer);
    assert_eq!(bytes[..TAG_AT], expected.concat());
    assert_eq!(bytes[TAG_AT..], tag_of(&bytes[..TAG_AT], &KEYS[1]).to_be_bytes());
    assert_eq!(Heartbeat::read(&bytes), Some(answer));
}

#[test]
fn bids_are_where_the_table_says() {
    let table = [
        Bid { address: Address::v4([192, 0, 2, 7]), epoch: 0x6162_6364_6566_6768, link: *b"uvwxyz" },
        Bid { address: Address::v6([7; 16]), epoch: 1, link: [0; 6] },
    ];
    let frame = bids(&Heartbeat { receiver: part(1, 3), ..question() }, &table, &KEYS[1]);
    assert_eq!((frame.len(), frame[4], &frame[6..8]), (128, BIDS, &[0, 2][..]));
    assert_eq!(frame[16..24], [0, 0, 0, 1, 0, 0, 0, 3]);
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7];
    let expected: [&[u8]; 6] =
        [&mapped, b"abcdefgh", b"uvwxyz\0\0", &[7; 16], &[0, 0, 0, 0, 0, 0, 0, 1], &[0; 8]];
    assert_eq!(frame[BYTES..], expected.concat());
    let signed = [&frame[..TAG_AT], &frame[BYTES..]].concat();
    assert_eq!(frame[TAG_AT..BYTES], tag_of(&signed, &KEYS[1]).to_be_bytes());
    let changed = |at: usize, value: u8| {
        let mut other = frame.clone();
        other[at] = value;
        let tag = tag_of(&[&other[..TAG_AT], &other[BYTES..]].concat(), &KEYS[1]);
        other[TAG_AT..BYTES].copy_from_slice(&tag.to_be_bytes());
        read_bids(&other, &KEYS)
    };
    // What a later release puts there is signed, and not looked at.
    assert_eq!(changed(BYTES + 31, 9).unwrap().1, table);
    for entries in [1, 3] {
        assert_eq!(changed(7, entries), None, "of two entries");
    }
}

#[test]
fn the_answer_is_of_the_segment_and_repeats_the_nonce() {
    let segment = Segment {
        node: 7,
        boot: 8,
        digest: 9,
        stamp_ns: 5_000_000_000,
        key: 1,
        keys: KEYS,
        ..Segment::zeroed()
    };
    let asked = Heartbeat { key: 0, ..question() };
    let answer = asked.answer(&segment, 5_042_999_999);
    let expected = Heartbeat {
        kind: ANSWER,
        key: 1,
        entries: 0,
        sender: 7,
        receiver: asked.sender,
        nonce: asked.nonce,
        boot: 8,
        stamp_age_ms: 42,
        digest: 9,
    };
    assert_eq!(answer, expected);
    assert_eq!(asked.answer(&segment, 4_999_999_999).stamp_age_ms, 0, "stamped since the clock was read");
    let years = segment.stamp_ns + (u64::from(u32::MAX) + 1) * 1_000_000;
    assert_eq!(asked.answer(&segment, years).stamp_age_ms, u32::MAX);
}

#[test]
fn a_question_says_the_link_address_of_its_sender_and_whether_it_is_a_candidate() {
    const LINK: [u8; 6] = [2, 3, 4, 5, 6, 0xff];
    assert_eq!((question().askers_link(), question().is_of_observer()), (0, false), "an earlier version");
    for is_observer in [false, true] {
        let asked = Heartbeat { receiver: asker(LINK, is_observer), ..question() };
        let packed = crate::maps::previous::Peer::new(0, false, LINK).link;
        assert_eq!((asked.askers_link(), asked.is_of_observer()), (packed, is_observer));
        let at = if is_observer { 1 } else { 0 };
        assert_eq!(signed(&asked)[16..24], [0, at, 0xff, 6, 5, 4, 3, 2]);
    }
}

#[test]
fn what_is_no_heartbeat_is_not_read() {
    let bytes = signed(&question());
    for (at, value) in [(0, b'v'), (3, b'2'), (4, 0), (4, 5), (7, 1), (6, 1), (44, 1), (47, 0x80)] {
        let mut other = bytes;
        other[at] = value;
        assert_eq!(Heartbeat::read(&other), None, "byte {at}");
    }
    let mut many = bytes;
    (many[4], many[7]) = (BIDS, 40);
    assert!(Heartbeat::read(&many).is_some());
    many[7] = 41;
    assert_eq!(Heartbeat::read(&many), None);
}

#[test]
fn only_a_key_that_is_set_verifies() {
    let bytes = signed(&question());
    assert!(is_authentic(&bytes, &KEYS));
    assert!(!is_authentic(&bytes, &[KEYS[1], KEYS[0]]));
    let mut unset = bytes;
    sign(&mut unset, &CookieKey::zeroed());
    assert!(!is_authentic(&unset, &[KEYS[0], CookieKey::zeroed()]));
    let empty = bids(&question(), &[], &CookieKey::zeroed());
    assert_eq!(read_bids(&empty, &[KEYS[0], CookieKey::zeroed()]), None);
    let mut beyond = bytes;
    beyond[5] = 2;
    sign(&mut beyond, &KEYS[0]);
    assert!(!is_authentic(&beyond, &KEYS));
}

/// Otherwise the programs could believe the header of bids whose entries they have not looked at.
#[test]
fn bids_are_authentic_only_as_a_whole() {
    let bytes = signed(&Heartbeat { kind: BIDS, entries: 1, ..question() });
    assert!(!is_authentic(&bytes, &KEYS));
    let frame = [&bytes[..], &[7; ENTRY_BYTES]].concat();
    assert_eq!(read_bids(&frame, &KEYS), None, "the tag is of the header alone");
    assert_eq!(read_bids(&signed(&question()), &KEYS), None, "another kind");
    let empty = bids(&question(), &[], &KEYS[1]);
    assert!(is_authentic(empty.first_chunk().unwrap(), &KEYS));
    assert_eq!(read_bids(&empty, &KEYS).unwrap().1, []);
}

fn any_heartbeat() -> impl Strategy<Value = Heartbeat> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>());
    let kinds = prop_oneof![Just(ASK), Just(ANSWER), Just(RESEND)];
    (kinds, 0..2u8, numbers).prop_map(|(kind, key, (sender, receiver, nonce, boot, stamp_age_ms, digest))| {
        Heartbeat { kind, key, entries: 0, sender, receiver, nonce, boot, stamp_age_ms, digest }
    })
}

fn any_bids() -> impl Strategy<Value = Vec<Bid>> {
    let bid = (any::<[u8; 16]>(), any::<u64>(), any::<[u8; 6]>()).prop_map(|(bytes, epoch, link)| Bid {
        address: Address { bytes },
        epoch,
        link,
    });
    prop::collection::vec(bid, 0..=ENTRIES_MAX)
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: [u8; BYTES], is_ours: bool, behind in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        if is_ours {
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4] &= 7;
            bytes[6] = 0;
            bytes[7] &= 63;
            bytes[44..48].fill(0);
        }
        if let Some(heartbeat) = Heartbeat::read(&bytes) {
            let mut again = [0xee; BYTES];
            heartbeat.write(&mut again);
            prop_assert_eq!(&again[..TAG_AT], &bytes[..TAG_AT]);
        }
        prop_assert!(!is_authentic(&bytes, &KEYS));
        prop_assert_eq!(read_bids(&[&bytes[..], &behind].concat(), &KEYS), None);
        prop_assert_eq!(read_bids(&behind, &KEYS), None);
    }

    #[test]
    fn what_was_signed_is_authentic_and_no_other_bit(heartbeat in any_heartbeat(), bit in 0..8 * BYTES) {
        let mut bytes = signed(&heartbeat);
        prop_assert_eq!(Heartbeat::read(&bytes), Some(heartbeat));
        prop_assert!(is_authentic(&bytes, &KEYS));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!is_authentic(&bytes, &KEYS));
    }

    #[test]
    fn bids_that_were_signed_are_read_and_no_other_bit(
        heartbeat in any_heartbeat(), table in any_bids(), bit: prop::sample::Index, cut: prop::sample::Index
    ) {
        let mut frame = bids(&heartbeat, &table, &KEYS[usize::from(heartbeat.key)]);
        let expected = Heartbeat { kind: BIDS, entries: table.len() as u16, ..heartbeat };
        prop_assert_eq!(read_bids(&frame, &KEYS), Some((expected, table)));
        prop_assert_eq!(read_bids(&frame[..cut.index(frame.len())], &KEYS), None);
        prop_assert_eq!(read_bids(&[&frame[..], &[0; ENTRY_BYTES]].concat(), &KEYS), None);
        let bit = bit.index(8 * frame.len());
        frame[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(read_bids(&frame, &KEYS), None);
    }
}
