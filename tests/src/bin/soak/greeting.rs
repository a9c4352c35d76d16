//! Hellos: of any size, with records cut anywhere, that carry the connection's number; and broken ones.

use ::tests::dice::Dice;
use ::tests::hello::hello;

use crate::tenants::Tenant;

/// The most bytes that a hello may have with its record headers (nine buffers).
const STREAM_MAX: usize = 18_432;
/// The most bytes of a message.
const MESSAGE_MAX: usize = 16_384;
/// Bytes of a record's header, and of a message's.
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// Offset of the random in a message (RFC 8446 section 4.1.2).
const RANDOM_AT: usize = 6;
/// Offset of the length of the session ID.
const SESSION_AT: usize = RANDOM_AT + 32;

/// What is wrong with a hello, so that its client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    UnknownName,
    NoName,
    BadName,
    NotTls,
    Malformed,
    TooLong,
}

impl Broken {
    pub(crate) const ALL: [Self; 6] =
        [Self::UnknownName, Self::NoName, Self::BadName, Self::NotTls, Self::Malformed, Self::TooLong];
}

/// What a hello contains.
pub(crate) struct Greeting {
    pub(crate) number: u64,
    pub(crate) tenant: Tenant,
    pub(crate) broken: Option<Broken>,
}

impl Greeting {
    /// The bytes as a client sends them.
    pub(crate) fn bytes(&self, dice: &mut Dice) -> Vec<u8> {
        if self.broken == Some(Broken::NotTls) {
            let mut text = b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n".to_vec();
            text.extend(self.number.to_be_bytes());
            return text;
        }
        let mut message = self.message(dice);
        match self.broken {
            Some(Broken::Malformed) => message[SESSION_AT] = 33 + dice.below(200) as u8,
            Some(Broken::TooLong) => {
                message[1..MESSAGE_HEADER].copy_from_slice(&[0, 0x40, 1 + dice.below(255) as u8])
            }
            _ => {}
        }
        records(dice, &message)
    }

    fn message(&self, dice: &mut Dice) -> Vec<u8> {
        let name = match self.broken {
            None | Some(Broken::Malformed | Broken::TooLong) if dice.chance(70) => self.tenant.server_name(),
            None | Some(Broken::Malformed | Broken::TooLong) => {
                format!("n{}.{}", dice.below(1 << 30), self.tenant.server_name())
            }
            Some(Broken::BadName) => "bad name.example.com".into(),
            _ => format!("x{}.unknown.example.com", dice.below(1 << 30)),
        };
        let mut builder = hello();
        if self.broken != Some(Broken::NoName) {
            builder = builder.name(name);
        }
        if dice.chance(30) {
            builder = builder.name_last();
        }
        let plain = builder.bytes();
        let room = MESSAGE_MAX + RECORD_HEADER - plain.len();
        let room = room as u64;
        let padding = if dice.chance(50) { dice.size(room) } else { dice.below(room + 1) } as usize;
        let mut stream = plain;
        if padding > 4 {
            stream = builder.length(stream.len() + padding).bytes();
            fill(dice, &mut stream, padding - 4);
        }
        let mut message = stream.split_off(RECORD_HEADER);
        message[RANDOM_AT..RANDOM_AT + 8].copy_from_slice(&self.number.to_be_bytes());
        for word in message[RANDOM_AT + 8..RANDOM_AT + 32].chunks_mut(8) {
            word.copy_from_slice(&dice.number().to_be_bytes());
        }
        message
    }
}

/// Fills the padding extension's body of this length with random bytes: zeros of one client would look like another's.
fn fill(dice: &mut Dice, stream: &mut [u8], padding: usize) {
    let header = [0, 21, (padding >> 8) as u8, padding as u8];
    let Some(at) = stream.windows(4).position(|window| window == header) else { return };
    for word in stream[at + 4..at + 4 + padding].chunks_mut(8) {
        let random = dice.number().to_be_bytes();
        word.copy_from_slice(&random[..word.len()]);
    }
}

/// Cuts a message into records: one, a few of random sizes, or many of about one size.
fn records(dice: &mut Dice, message: &[u8]) -> Vec<u8> {
    // Headers may take what the message leaves of the most bytes.
    let most = (STREAM_MAX - message.len()) / RECORD_HEADER;
    let wanted = dice.weighted(&[(6, 1), (3, dice.clone().between(2, 8)), (1, dice.clone().between(9, 200))]);
    let count = (wanted as usize).clamp(1, most.min(message.len()));
    let mut ends: Vec<usize> =
        (1..count).map(|_| dice.between(1, message.len() as u64 - 1) as usize).collect();
    ends.push(message.len());
    ends.sort_unstable();
    ends.dedup();
    let (mut stream, mut from) = (Vec::new(), 0);
    for end in ends {
        stream.extend([22, 3, 1]);
        stream.extend(((end - from) as u16).to_be_bytes());
        stream.extend(&message[from..end]);
        from = end;
    }
    stream
}

/// Reads a hello from its first bytes: its length with record headers, and the connection's number. `None`: more
/// bytes are needed.
pub(crate) fn read(stream: &[u8]) -> Option<(usize, u64)> {
    let (mut message, mut at) = (Vec::new(), 0);
    loop {
        let header = stream.get(at..at + RECORD_HEADER)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        message.extend(stream.get(at + RECORD_HEADER..at + RECORD_HEADER + length)?);
        at += RECORD_HEADER + length;
        let Some(&[_, high, middle, low]) = message.first_chunk::<MESSAGE_HEADER>() else { continue };
        let whole = MESSAGE_HEADER + (usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low));
        if message.len() >= whole {
            let number = message.get(RANDOM_AT..)?.first_chunk::<8>()?;
            return Some((at, u64::from_be_bytes(*number)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::TENANTS;
    use common::maps::flow::HELLO_BYTES_MAX;

    #[test]
    fn a_greeting_carries_its_number_and_fits_nine_buffers() {
        assert_eq!(STREAM_MAX, HELLO_BYTES_MAX);
        let (mut shortest, mut longest) = (usize::MAX, 0);
        for number in 0..3000 {
            let mut dice = Dice::new(3, number);
            let greeting = Greeting { number, tenant: TENANTS[0], broken: None };
            let mut bytes = greeting.bytes(&mut dice);
            let length = bytes.len();
            assert!(length <= STREAM_MAX);
            (shortest, longest) = (shortest.min(length), longest.max(length));
            bytes.extend([0; 9]);
            assert_eq!(read(&bytes), Some((length, number)));
            assert_eq!(read(&bytes[..length - 1]), None);
        }
        assert!(shortest < 250 && longest > 15_000, "{shortest} to {longest}");
    }
}
