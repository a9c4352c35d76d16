//! Connections scripted packet by packet: a script plays both ends, and the Vestibule between them is real.
//!
//! A script is a text file (`tests/script/*.pkt`) with one step per line; `#` starts a comment:
//!
//! ```text
//! client -> S 0:0 win 64240 <mss 1460,sackOK>      # the client sends a SYN
//! client <- S. 0:0 ack 1 <mss 1460,sackOK>         # and receives this answer, and no other
//! client -> P. 1:518 ack 1
//! backend <- S 0:0 <mss 1460,sackOK>
//! ```
//!
//! `->` is a packet that an end sends, `<-` one that arrives at it. Flags are `S F R P U E W` and `.` for ACK, or
//! `-` for none. `begin:end` counts payload, as in tcpdump. All numbers are relative: an end's own to its first
//! one, the other end's to the first one received from it. Timestamps of an end's own clock are as sent; those of
//! the other end are relative to the first one received, which is 1. `*` is any number and `<...>` any options;
//! without `<>` there are none. NOPs are not compared. Payload is not written in the script: each end has its own
//! stream (a client's starts with its hello), and every byte that arrives is compared with it.
//!
//! Between two steps nothing may arrive that no line expects. Ends: `client`, `client2`, ... (ports 40000, 40002,
//! ...), `forger` (a stranger on `client`'s addresses and ports, with its own numbers), `backend` (tenant a's),
//! `other` (tenant b's); `backend/2` is the second connection there. Other steps:
//!
//! | step | meaning |
//! | --- | --- |
//! | `set listener tcp` | clients dial tenant a's TCP listener instead of the TLS listener |
//! | `set port client 444` | the client dials this port of the VIP |
//! | `set isn client 0xfffffff0` | sets an end's first sequence number |
//! | `set hello client tenant-b 600` | sets a client's hello: its tenant and its length in bytes |
//! | `set ports 1024-1025` | sets the node's source ports |
//! | `use open` | runs the steps of tests/script/open.inc |
//! | `stream backend 1:100001 by 1000 ack 518` | sends segments of 1,000 bytes; each must arrive as it was sent |
//! | `anew client tenant-b` | the client starts a new connection on its port, with other numbers |
//! | `challenged client` | the next packet that the end gets is a challenge ACK (RFC 5961), whatever its numbers |
//! | `age 7200` | lets this many seconds pass for all entries |
//! | `sweep` | expires what the daemon would expire |
//! | `counts ForwardClient=2` | all that was counted since the last such line |
//! | `entries flows=1 nats=1` | the number of entries in these maps |

/// Parses text into steps.
pub mod parse;
/// The ends and their state.
mod end;
/// Plays steps.
mod play;
/// Formats packets as lines of a script.
mod show;

pub use play::{Hooks, play};

use common::reason::Reason;

/// A line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: usize,
    pub text: String,
    pub step: Step,
}

/// The step of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Clients dial a TCP listener instead of the TLS one.
    TcpListener,
    /// The port that a client dials.
    Port {
        end: String,
        port: u16,
    },
    Isn {
        end: String,
        number: u32,
    },
    Hello {
        end: String,
        tenant: usize,
        bytes: usize,
    },
    Ports {
        first: u16,
        last: u16,
    },
    Use(String),
    Sends {
        end: String,
        packet: Packet,
    },
    Gets {
        end: String,
        packet: Packet,
    },
    Stream {
        end: String,
        begin: u64,
        until: u64,
        by: u64,
        ack: u64,
    },
    Anew {
        end: String,
        tenant: usize,
    },
    Challenged {
        end: String,
    },
    Age {
        seconds: u32,
    },
    Sweep,
    Counts(Vec<(Reason, u64)>),
    Entries(Vec<(Kept, usize)>),
}

/// A map whose entries are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Flows,
    Nats,
    Hellos,
    HalfOpens,
}

/// A segment in relative numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// As in [`crate::packet::flag`].
    pub flags: u8,
    pub begin: u64,
    pub end: u64,
    pub ack: Option<u64>,
    /// As on the wire; not compared when not given.
    pub window: Option<u16>,
    pub urgent: u16,
    /// Both ECN bits of the IP header.
    pub ecn: u8,
    /// `None` = any.
    pub options: Option<Vec<Opt>>,
}

/// A TCP option in relative numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opt {
    Mss(u16),
    Scale(u8),
    SackPermitted,
    /// `None` = any.
    Timestamps(Option<u32>, Option<u32>),
    Sack(Vec<(u64, u64)>),
    Nop,
    /// Kind, length and value.
    Raw(Vec<u8>),
}
