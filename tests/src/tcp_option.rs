//! Encodes and decodes TCP options (RFC 9293 section 3.2, RFC 7323, RFC 2018).

/// One option of a TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    Nop,
    Mss(u16),
    WindowScale(u8),
    SackPermitted,
    /// (left edge, right edge) of each block.
    Sack(Vec<(u32, u32)>),
    /// (value, echo reply).
    Timestamps(u32, u32),
    /// Any other option: kind, length and value as on the wire, padding included.
    Raw(Vec<u8>),
}

/// Encodes the options, padded with zeros (end of options) to a multiple of four bytes.
pub fn encode(options: &[TcpOption]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for option in options {
        match option {
            TcpOption::Nop => bytes.push(1),
            TcpOption::Mss(mss) => {
                bytes.extend([2, 4]);
                bytes.extend(mss.to_be_bytes());
            }
            TcpOption::WindowScale(shift) => bytes.extend([3, 3, *shift]),
            TcpOption::SackPermitted => bytes.extend([4, 2]),
            TcpOption::Sack(blocks) => {
                bytes.extend([5, 2 + 8 * blocks.len() as u8]);
                for (left, right) in blocks {
                    bytes.extend(left.to_be_bytes());
                    bytes.extend(right.to_be_bytes());
                }
            }
            TcpOption::Timestamps(value, echo) => {
                bytes.extend([8, 10]);
                bytes.extend(value.to_be_bytes());
                bytes.extend(echo.to_be_bytes());
            }
            TcpOption::Raw(raw) => bytes.extend(raw),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Decodes the options of a header. Up to three zeros at the end are padding; anything undecodable is
/// [`TcpOption::Raw`].
pub fn decode(mut bytes: &[u8]) -> Vec<TcpOption> {
    let mut options = Vec::new();
    while let Some(&kind) = bytes.first() {
        if bytes.iter().all(|b| *b == 0) && bytes.len() < 4 {
            break;
        }
        if kind == 1 {
            options.push(TcpOption::Nop);
            bytes = &bytes[1..];
            continue;
        }
        let length = bytes.get(1).map_or(0, |l| usize::from(*l));
        if kind == 0 || length < 2 || length > bytes.len() {
            options.push(TcpOption::Raw(bytes.to_vec()));
            break;
        }
        let (option, rest) = bytes.split_at(length);
        options.push(decode_one(option));
        bytes = rest;
    }
    options
}

fn decode_one(option: &[u8]) -> TcpOption {
    let word = |at: usize| u32::from_be_bytes([option[at], option[at + 1], option[at + 2], option[at + 3]]);
    match (option[0], option.len()) {
        (2, 4) => TcpOption::Mss(u16::from_be_bytes([option[2], option[3]])),
        (3, 3) => TcpOption::WindowScale(option[2]),
        (4, 2) => TcpOption::SackPermitted,
        (5, length) if length >= 10 && (length - 2).is_multiple_of(8) => {
            TcpOption::Sack((2..length).step_by(8).map(|at| (word(at), word(at + 4))).collect())
        }
        (8, 10) => TcpOption::Timestamps(word(2), word(6)),
        _ => TcpOption::Raw(option.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_round_trip() {
        let all = vec![
            TcpOption::Mss(1460),
            TcpOption::SackPermitted,
            TcpOption::Timestamps(1, 2),
            TcpOption::Nop,
            TcpOption::WindowScale(7),
            TcpOption::Sack(vec![(3, 4), (5, 6)]),
            TcpOption::Raw(vec![34, 2]),
        ];
        assert_eq!(decode(&encode(&all)), all);
        assert_eq!(decode(&[0, 0, 0, 0]), vec![TcpOption::Raw(vec![0, 0, 0, 0])]);
        assert_eq!(decode(&[2, 60, 0, 0]), vec![TcpOption::Raw(vec![2, 60, 0, 0])]);
    }
}
