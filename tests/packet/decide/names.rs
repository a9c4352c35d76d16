//! Random server names: those of patterns, and other names that clients may send.

use tests::dice::Dice;

const LABELS: [&str; 8] = ["a", "b", "api", "x-1", "_c", "xn--bcher-kva", "default", "7"];
/// Names of the cluster's own API server, which no tenant may have, and similar names.
const NEARLY_RESERVED: [&str; 8] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "kubernetes.default.svc.cluster",
    "default.svc.cluster.local",
    "svc",
    "kubernetez.default",
];
const ADDRESSES: [&str; 14] = [
    "192.0.2.1",
    "10.0.0.1.",
    "1.2.3",
    "1.2.3.256",
    "1.2.3.4.5",
    "0x7f.0.0.1",
    "01.2.3.4",
    "::",
    "::1",
    "2001:db8::1",
    "[::1]",
    "a:443",
    "::ffff:192.0.2.1",
    "fe80::1%eth0",
];

/// Returns a valid name, in lower case.
pub(super) fn name(dice: &mut Dice) -> String {
    match dice.below(10) {
        // Lengths just within and just beyond what `ROUTES_EXACT` takes.
        0 | 1 => of_length(dice, 58, 65),
        2 => of_length(dice, 200, 253),
        3 => of_length(dice, 250, 253),
        4 => dice.pick(&NEARLY_RESERVED).to_owned(),
        _ => {
            let labels = dice.count(1, 4);
            (0..labels).map(|_| dice.pick(&LABELS)).collect::<Vec<_>>().join(".")
        }
    }
}

/// Returns a name of this many bytes; its labels have the maximum length, or nearly.
fn of_length(dice: &mut Dice, least: usize, most: usize) -> String {
    let length = dice.count(least, most);
    let mut name = String::new();
    while name.len() < length {
        let left = length - name.len();
        let label = left.min(dice.count(60, 63));
        // Leaves no dot at the end.
        let label = if left == label + 1 { label - 1 } else { label };
        name.extend(std::iter::repeat_n(dice.pick(&['n', 'm', '0']), label));
        if name.len() < length {
            name.push('.');
        }
    }
    name
}

/// Returns a name above this one, below it, or next to it.
pub(super) fn relative(dice: &mut Dice, name: &str) -> String {
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    match dice.below(6) {
        0 => rest.to_owned(),
        1 => format!("{}.{rest}", dice.pick(&LABELS)),
        2 => format!("{}.{name}", dice.pick(&LABELS)),
        3 => format!("{}.{}.{name}", dice.pick(&LABELS), dice.pick(&LABELS)),
        // Only the end is the same.
        4 => format!("{}{name}", dice.pick(&LABELS)),
        _ => format!("{first}x.{rest}"),
    }
}

/// Returns the name a client asks for: one of `near`, or one related to them; `None` if it sends no name.
pub(super) fn asked(dice: &mut Dice, near: &[&str]) -> Option<Vec<u8>> {
    let near = if near.is_empty() { "a.b".to_owned() } else { dice.pick(near).to_owned() };
    let name = match dice.below(20) {
        0 => return None,
        1 => name(dice),
        2 => dice.pick(&NEARLY_RESERVED).to_owned(),
        3 => dice.pick(&ADDRESSES).to_owned(),
        4..=7 => near,
        8..=10 => format!("{}.{near}", dice.pick(&LABELS)),
        11..=14 => relative(dice, &near),
        15 => {
            let once = relative(dice, &near);
            relative(dice, &once)
        }
        // Below a wildcard, with a first label of about the maximum length.
        16 => format!("{}.{near}", "w".repeat(dice.count(60, 64))),
        17 => longest_below(dice, &near),
        _ => return Some(garbled(dice, near.into_bytes())),
    };
    let mut bytes = name.into_bytes();
    if dice.one_in(3) {
        for byte in &mut bytes {
            if dice.one_in(2) {
                byte.make_ascii_uppercase();
            }
        }
    }
    if dice.one_in(4) {
        bytes.push(b'.');
    }
    Some(bytes)
}

/// Returns a name below this one, of about the maximum length.
fn longest_below(dice: &mut Dice, name: &str) -> String {
    let length = dice.count(251, 255);
    let Some(left) = length.checked_sub(name.len() + 1).filter(|left| *left > 0) else {
        return name.to_owned();
    };
    let labels = of_length(dice, left, left);
    format!("{labels}.{name}")
}

/// Returns the name with some bytes changed, added or removed.
fn garbled(dice: &mut Dice, mut name: Vec<u8>) -> Vec<u8> {
    const BYTES: [u8; 14] = *b".._-*: \0/@\xc3\xbcZ%";
    for _ in 0..dice.count(1, 3) {
        let at = dice.index(name.len() + 1);
        let byte = if dice.one_in(3) { dice.number() as u8 } else { dice.pick(&BYTES) };
        match dice.below(4) {
            0 => name.insert(at, byte),
            1 => name.truncate(at),
            2 if at < name.len() => drop(name.remove(at)),
            _ if at < name.len() => name[at] = byte,
            _ => name.push(byte),
        }
    }
    if dice.one_in(20) { vec![b'.'; dice.count(1, 3)] } else { name }
}
