//! Any bytes as a message of ARP or neighbour discovery.

use common::wire::arp::{self, About, Message};
use common::wire::ndp::{self, Asker, Heading};

/// Input: source and destination (16 bytes each), hop limit, the length that the header has beyond the message's own, then the
/// message. Its first 28 bytes are an ARP message, too.
pub fn check(input: &[u8]) {
    let Some((source, rest)) = input.split_first_chunk::<16>() else { return };
    let Some((destination, rest)) = rest.split_first_chunk::<16>() else { return };
    let Some(([hop_limit, beyond], message)) = rest.split_first_chunk::<2>() else { return };
    if let Some(bytes) = message.first_chunk() {
        check_arp(bytes);
    }
    let length = message.len() as u32 + u32::from(*beyond);
    let mut examined = [0; ndp::EXAMINED];
    let present = message.len().min(ndp::EXAMINED);
    examined[..present].copy_from_slice(&message[..present]);
    let heading = Heading { source, destination, hop_limit: *hop_limit, length };
    let found = ndp::solicitation(&heading, &examined);
    assert_eq!(found, expected(&heading, &examined), "{heading:?} {examined:02x?}");
    assert_eq!(ndp::target(&examined, length).is_some(), length >= 24);
    assert!(
        found == Asker::NOBODY || ndp::is_advertisement(&heading, &examined),
        "the same rules hold for both"
    );
}

fn check_arp(bytes: &[u8; arp::BYTES]) {
    let Some(message) = Message::read(bytes) else {
        assert_ne!(bytes[..6], [0, 1, 8, 0, 6, 4]);
        return;
    };
    let mut written = [0; arp::BYTES];
    message.write(&mut written);
    assert_eq!(&written, bytes);
    let (about, address) = message.about();
    let reply = message.reply([2, 0, 0, 0, 0, 7]);
    if about == About::Asks {
        assert_eq!((reply.about(), reply.target_link), ((About::Claims, address), message.sender_link));
    }
}

/// The rules of RFC 4861 section 7.1.1 again, as plainly as possible, over the options that are examined.
fn expected(heading: &Heading<'_>, message: &[u8; ndp::EXAMINED]) -> Asker {
    let is_trial = *heading.source == [0; 16];
    let is_group = |address: &[u8]| address.first() == Some(&0xff);
    if heading.hop_limit != 255 || message[1] != 0 || heading.length < 24 {
        return Asker::NOBODY;
    }
    let asks_group = heading.destination[..13] == [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];
    if is_group(&message[8..24]) || is_group(heading.source) || is_trial && !asks_group {
        return Asker::NOBODY;
    }
    let (mut at, mut link) = (24, None);
    while at < ndp::EXAMINED && at < heading.length as usize {
        let bytes = usize::from(message[at + 1]) * 8;
        if bytes == 0 || at + bytes > heading.length as usize {
            return Asker::NOBODY;
        }
        if message[at] == 1 && bytes == 8 {
            if message[at + 2] % 2 == 1 {
                return Asker::NOBODY;
            }
            link = Some(at as u32 + 2);
        }
        at += bytes;
    }
    match link {
        Some(_) if is_trial => Asker::NOBODY,
        Some(at) => Asker::at(at),
        None if is_trial => Asker::EVERYBODY,
        None => Asker::FRAME,
    }
}
