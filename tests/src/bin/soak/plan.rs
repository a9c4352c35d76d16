//! What one connection does, decided by the seed and the connection's number.

use ::tests::addresses::{FAMILIES, Family};
use ::tests::dice::Dice;

use crate::greeting::{Broken, Greeting};
use crate::network::CLIENT_HOSTS;
use crate::tenants::{TENANTS, Tenant};

/// Largest upload and download that nearly all connections stay below, and the one of few.
const USUAL_BYTES: u64 = 60_000;
const BULK_BYTES: u64 = 2_000_000;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client closes after it has everything.
    ClientCloses,
    /// The client closes its half after the upload, and reads to the end.
    HalfClose,
    /// The backend closes after it has sent everything.
    BackendCloses,
    /// The client resets after this many bytes of its upload.
    AbortUp(u32),
    /// The client resets after this many bytes of the download.
    AbortDown(u32),
    /// The client closes after this many bytes of the download, with more in flight.
    Leave(u32),
    /// The backend resets after this many bytes of the download.
    BackendAborts(u32),
}

impl End {
    /// Whether the backend may see a reset, or a connection that ends too early.
    pub(crate) const fn is_client_abort(self) -> bool {
        matches!(self, Self::AbortUp(_) | Self::AbortDown(_) | Self::Leave(_))
    }
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// An answer of its tenant's backend.
    Served(End),
    /// Something that is refused with RST.
    Refused(Broken),
    /// Sends the first bytes of a hello, then closes, resets, or waits until it is reset.
    Unfinished(Stop),
    /// Connects and sends nothing, then closes or resets.
    Empty(Stop),
    /// Connects to a port without a listener.
    ClosedPort,
}

/// How a client gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Close,
    Abort,
    Wait,
}

/// The plan of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its number: decides everything else, and is sent in the hello.
    pub(crate) number: u64,
    pub(crate) tenant: Tenant,
    pub(crate) family: Family,
    /// 0: the clients behind the injector, 1: the others.
    pub(crate) net: usize,
    /// The client's address in its network.
    pub(crate) host: u8,
    pub(crate) aim: Aim,
    pub(crate) upload: u32,
    pub(crate) download: u32,
    /// Whether the upload follows the hello at once, in the same write.
    pub(crate) eager: bool,
    /// Milliseconds without a word between the answer and the download.
    pub(crate) idle_ms: u64,
    /// Where the hello is cut: each part is written by itself, after a pause in microseconds.
    pub(crate) cuts: Vec<(usize, u64)>,
    /// Bytes of the hello.
    pub(crate) hello_bytes: usize,
}

/// Makes the plan with this number, and the bytes of its hello.
pub(crate) fn plan(seed: u64, number: u64, patient: bool) -> (Plan, Vec<u8>) {
    let mut dice = Dice::new(seed, number);
    let tenant = TENANTS[dice.below(TENANTS.len() as u64) as usize];
    let most = if dice.chance(3) { BULK_BYTES } else { USUAL_BYTES };
    let (upload, download) = (dice.size(most) as u32, dice.size(most) as u32);
    let aim = match (patient, tenant.tcp) {
        (true, false) => Aim::Unfinished(Stop::Wait),
        (_, true) => Aim::Served(end(&mut dice, upload, download)),
        (false, false) => aim(&mut dice, upload, download),
    };
    let broken = if let Aim::Refused(broken) = aim { Some(broken) } else { None };
    let hello = Greeting { number, tenant, broken }.bytes(&mut dice);
    let idle_ms = if patient || dice.chance(2) { dice.between(500, 9000) } else { 0 };
    let plan = Plan {
        number,
        tenant,
        family: FAMILIES[dice.below(2) as usize],
        net: dice.below(2) as usize,
        host: dice.below(CLIENT_HOSTS.into()) as u8,
        aim,
        upload,
        download,
        eager: dice.chance(40),
        idle_ms,
        cuts: cuts(&mut dice, hello.len()),
        hello_bytes: hello.len(),
    };
    (plan, hello)
}

fn aim(dice: &mut Dice, upload: u32, download: u32) -> Aim {
    let stop = dice.weighted(&[(1, Stop::Close), (1, Stop::Abort)]);
    let broken = Broken::ALL[dice.below(Broken::ALL.len() as u64) as usize];
    let served = Aim::Served(end(dice, upload, download));
    dice.weighted(&[
        (84, served),
        (9, Aim::Refused(broken)),
        (4, Aim::Unfinished(stop)),
        (2, Aim::Empty(stop)),
        (1, Aim::ClosedPort),
    ])
}

fn end(dice: &mut Dice, upload: u32, download: u32) -> End {
    let (up, down) = (dice.below(u64::from(upload) + 1) as u32, dice.below(u64::from(download) + 1) as u32);
    dice.weighted(&[
        (30, End::ClientCloses),
        (15, End::HalfClose),
        (20, End::BackendCloses),
        (10, End::AbortUp(up)),
        (10, End::AbortDown(down)),
        (5, End::Leave(down)),
        (10, End::BackendAborts(down)),
    ])
}

/// Cuts a hello: whole, at some offsets, into segments of one size, or its start byte by byte. All pauses together
/// take less than two seconds.
fn cuts(dice: &mut Dice, bytes: usize) -> Vec<(usize, u64)> {
    let most_us = dice.weighted(&[(6, 0), (3, 3000), (1, 60_000)]);
    let mut ends: Vec<usize> = match dice.below(5) {
        0 => Vec::new(),
        1 | 2 => (0..dice.between(1, 12)).map(|_| dice.between(1, bytes as u64) as usize).collect(),
        3 => {
            let size = dice.between(200, 1500) as usize;
            (1..bytes.div_ceil(size)).map(|n| n * size).collect()
        }
        _ => {
            let from = dice.below(bytes as u64) as usize;
            (from.max(1)..(from + 25).min(bytes)).collect()
        }
    };
    ends.sort_unstable();
    ends.dedup();
    ends.retain(|end| *end < bytes);
    ends.push(bytes);
    ends.into_iter().map(|end| (end, dice.below(most_us + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_decides() {
        let text = |seed, number| {
            let (plan, hello) = plan(seed, number, false);
            (format!("{plan:?}"), hello)
        };
        assert_eq!(text(5, 9), text(5, 9));
        assert_ne!(text(5, 9), text(5, 10));
        assert_ne!(text(6, 9), text(5, 9));
    }

    #[test]
    fn cuts_cover_the_hello_and_pauses_are_short() {
        for number in 0..2000 {
            let (plan, hello) = plan(1, number, false);
            assert!(plan.cuts.is_sorted_by(|a, b| a.0 < b.0));
            assert_eq!(plan.cuts.last().unwrap().0, hello.len());
            assert!(plan.cuts.iter().map(|(_, us)| us).sum::<u64>() < 5_500_000);
        }
    }
}
