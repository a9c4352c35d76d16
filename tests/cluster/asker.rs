//! A host of the nodes' segment that asks for addresses all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use common::wire::{arp, ndp};
use nix::ifaddrs::getifaddrs;
use tests::cluster::Cluster;
use tests::tap::Tap;
use userspace::net::frames::claim;

/// The router's device on the segment.
const DEVICE: &str = "br0";
/// Interval between two questions for an address.
const EVERY: Duration = Duration::from_millis(50);

/// Asks as a host does that knows no link address.
pub(crate) struct Asker {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<Asked>>,
}

/// Who answered.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Of each address: the number of the question after which a node answered or announced it, and the link address.
    answers: BTreeMap<IpAddr, Vec<(u32, String)>>,
    /// How many questions there were.
    questions: u32,
}

impl Asker {
    /// Begins to ask for these addresses at the router.
    pub(crate) fn start<'a>(cluster: &Cluster, addresses: impl Iterator<Item = &'a IpAddr>) -> Result<Self> {
        let addresses: Vec<IpAddr> = addresses.copied().collect();
        let ends = Arc::new(AtomicBool::new(false));
        // Threads inherit the network namespace of the one that starts them.
        let thread = cluster.at_router(|| {
            let ends = Arc::clone(&ends);
            spawn(move || ask(&addresses, &ends))
        })?;
        Ok(Self { ends, thread })
    }

    /// Ends it. An error: it did not see all frames, or could not ask.
    pub(crate) fn end(self) -> Result<Asked> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Asked {
    /// All link addresses that an address was announced with.
    pub(crate) fn links(&self, address: &IpAddr) -> BTreeSet<String> {
        self.turns(address).into_iter().map(str::to_owned).collect()
    }

    /// The same in the order of time: one that comes back is listed again.
    pub(crate) fn turns(&self, address: &IpAddr) -> Vec<&str> {
        let mut links: Vec<&str> = self.answers[address].iter().map(|(_, link)| &**link).collect();
        links.dedup();
        links
    }

    /// The longest time for which nobody answered for an address. Only time with questions counts: under full load, the host that asks may
    /// not run for seconds.
    pub(crate) fn silence(&self, address: &IpAddr) -> Duration {
        let answered = self.answers[address].iter().map(|(question, _)| *question);
        let answered: Vec<u32> = [0].into_iter().chain(answered).chain([self.questions + 1]).collect();
        let unanswered = answered.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(1));
        EVERY * unanswered.max().unwrap_or_default()
    }
}

fn ask(addresses: &[IpAddr], ends: &AtomicBool) -> Result<Asked> {
    let tap = Tap::open_here(DEVICE)?;
    let from = link_address(DEVICE)?;
    let mut answers: BTreeMap<_, Vec<_>> = addresses.iter().map(|address| (*address, Vec::new())).collect();
    let mut questions = 0;
    while !ends.load(Ordering::Relaxed) {
        questions += 1;
        for address in addresses {
            match address {
                IpAddr::V4(address) => tap.send(&arp::probe(*address, from)),
                IpAddr::V6(address) => tap.send(&ndp::probe(*address, from)),
            }
            .context("asking")?;
        }
        sleep(EVERY);
        for (address, link) in tap.drain()?.iter().filter_map(|frame| claim(frame)) {
            if let Some(answers) = answers.get_mut(&address) {
                answers.push((questions, link.map(|byte| format!("{byte:02x}")).join(":")));
            }
        }
        ensure!(tap.lost()? == 0, "frames were lost");
    }
    Ok(Asked { answers, questions })
}

/// The link address of a device of this thread's namespace.
fn link_address(device: &str) -> Result<[u8; 6]> {
    let mut all = getifaddrs()?.filter(|one| one.interface_name == device);
    let link = all.find_map(|one| one.address?.as_link_addr()?.addr());
    link.with_context(|| format!("{device} has no link address"))
}
