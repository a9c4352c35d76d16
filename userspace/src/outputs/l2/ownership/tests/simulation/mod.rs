//! Several nodes on a segment that loses, delays and cuts, in virtual time. What the kernel does is modelled, chance comes from a
//! seed.

/// What arrives where, and when.
mod network;
/// A node: its kernel and its agent.
mod node;
/// The nodes, the network, and time.
mod lan;
/// What must be true at every moment.
mod laws;
/// Histories by chance.
mod histories;
/// Histories with one subject each.
mod stories;
/// Planned moves.
mod moves;

use std::net::IpAddr;

/// Something that is wrong on purpose, which a law has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// Answers to probes are lost.
    NoVeto,
    /// The agent stamps whatever it does not know yet.
    StampsAtOnce,
    /// The kernel gate never closes.
    NoGate,
    /// The kernel gate closes where no other node is received.
    GateClosesAlone,
    /// The kernel gate opens again once no other node is received any more.
    GateOpensAgain,
    /// Requests for tables are lost.
    NoResend,
    /// What is bid for is open at once.
    OpensWithTheBid,
    /// What is to be closed stays open.
    NeverCloses,
    /// Versions of tables start from the beginning with each agent.
    OldVersions,
    /// What was held is not adopted.
    AdoptsNothing,
}

fn address(number: usize) -> IpAddr {
    match number % 3 {
        0 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16]),
        _ => IpAddr::from([192, 0, 2, number as u8]),
    }
}
