//! Connections that are open while their address moves from node to node.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use common::maps::name;
use common::reason::Reason;
use tests::pinned::pinned_by_cpu;
use tests::skip_without_root;

use super::scene::{Segment, serve};

/// By the hashes of their names, the second node comes before the first for these addresses, and the third before the second.
const MOVING: [&str; 2] = ["192.0.2.6", "2001:db8::6"];
/// Connections to each of them.
const CONNECTIONS: usize = 500;
/// Threads that serve them.
const THREADS: usize = 4;

/// Connections, each of which sends bytes all the time and compares what is echoed.
struct Uploads {
    is_over: Arc<AtomicBool>,
    /// Of each thread: how often all of its connections have sent and received something.
    rounds: Arc<[AtomicU64; THREADS]>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

/// Sends bytes that no other connection or round has, and reads them back.
fn exchange(stream: &mut TcpStream, number: usize, round: u64) -> std::io::Result<bool> {
    let seed = (number as u64) << 40 | round;
    let words = (0..64).map(|word: u64| (seed ^ word << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let sent: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
    stream.write_all(&sent)?;
    let mut echoed = vec![0; sent.len()];
    stream.read_exact(&mut echoed)?;
    Ok(echoed == sent)
}

impl Uploads {
    fn start(segment: &Segment) -> Self {
        let open = |number: usize| {
            let vip = MOVING[number % 2];
            let mut stream =
                segment.dial(vip).unwrap_or_else(|error| panic!("{vip}: {error}\n{}", segment.logs()));
            stream.read_exact(&mut [0; 8]).unwrap();
            (number, stream)
        };
        let mut all: Vec<(usize, TcpStream)> = (0..2 * CONNECTIONS).map(open).collect();
        let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let threads = (0..THREADS).map(|thread| {
            let mut own = all.split_off(all.len() - 2 * CONNECTIONS / THREADS);
            let (is_over, rounds): (_, Arc<[AtomicU64; THREADS]>) =
                (Arc::clone(&is_over), Arc::clone(&rounds));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let round = rounds[thread].fetch_add(1, Ordering::Relaxed);
                    for (number, stream) in &mut own {
                        match exchange(stream, *number, round) {
                            Ok(true) => {}
                            Ok(false) => {
                                return Err(format!("connection {number}: other bytes in round {round}"));
                            }
                            Err(error) => return Err(format!("connection {number}, round {round}: {error}")),
                        }
                    }
                }
                Ok(())
            })
        });
        let threads = threads.collect();
        Self { is_over, rounds, threads }
    }

    /// Waits until each connection has sent and received something since the call.
    fn until_all_went_on(&self, segment: &Segment) {
        let now = || self.rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
        let before = now();
        segment.until("all connections went on", |_| {
            let has_failed = self.threads.iter().any(JoinHandle::is_finished);
            has_failed || now().iter().zip(before).all(|(now, before)| *now > before + 1)
        });
    }

    /// Ends all connections. Returns what became of those that were lost.
    fn end(self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
    }
}

/// The number of packets that a node passed to the one that announced their address before.
fn passed(segment: &Segment, number: usize) -> u64 {
    let counters = segment.nodes[number].pins.path().join(name::COUNTERS);
    pinned_by_cpu::<u64>(&counters, Reason::PreviousPassed as u32).unwrap().iter().sum()
}

/// Starts the next node, and waits until the addresses have moved to it.
fn move_on(segment: &mut Segment, number: usize) {
    segment.reconnect(number);
    segment.start(number);
    segment.members(number + 1);
    segment.until("the addresses have moved to the node that joined", |segment| {
        MOVING.iter().all(|vip| segment.owners(vip) == [number])
    });
}

#[test]
fn connections_live_on_at_the_previous_owner_while_their_address_moves() {
    skip_without_root!();
    let mut segment = Segment::of_first(3, "2s");
    serve(segment.kubectl(), "moving", MOVING);
    segment.until("the addresses are served", |segment| MOVING.iter().all(|vip| segment.dial(vip).is_ok()));
    let first = Uploads::start(&segment);
    first.until_all_went_on(&segment);
    move_on(&mut segment, 1);
    first.until_all_went_on(&segment);
    let shown = segment.shown(1);
    let lines = shown.lines().filter(|line| MOVING.iter().any(|vip| line.contains(vip)));
    assert_eq!(lines.filter(|line| line.ends_with("(answers)")).count(), 2, "{shown}");
    // The client has learned the new link address. What is opened there is there.
    let through_second = passed(&segment, 1);
    assert!(through_second > 0);
    let second = Uploads::start(&segment);
    first.until_all_went_on(&segment);
    second.until_all_went_on(&segment);
    assert_eq!(first.end(), Vec::<String>::new(), "{}", segment.logs());
    assert_eq!(passed(&segment, 0), 0);
    move_on(&mut segment, 2);
    second.until_all_went_on(&segment);
    assert!(passed(&segment, 2) > 0);
    // The third node may announce nothing any more.
    let third = Uploads::start(&segment);
    segment
        .kubectl()
        .run(&["label", "node", "node2", "node.kubernetes.io/exclude-from-external-load-balancers="])
        .unwrap();
    segment.until("the addresses have moved from the node that is excluded", |segment| {
        MOVING.iter().all(|vip| segment.owners(vip) == [1])
    });
    third.until_all_went_on(&segment);
    assert!(passed(&segment, 1) > through_second);
    // Until the client knew the link address of the node that has them back, the excluded one passed on what it still sent there.
    second.until_all_went_on(&segment);
    assert_eq!(second.end(), Vec::<String>::new(), "{}", segment.logs());
    assert_eq!(third.end(), Vec::<String>::new(), "{}", segment.logs());
}
