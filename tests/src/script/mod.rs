//! Connections told packet by packet: both ends are played by a script, Vestibule between them is real.
//!
//! A script is a text file (`tests/script/*.pkt`), a step a line, `#` begins a comment:
//!
//! ```text
//! client -> S 0:0 win 64240 <mss 1460,sackOK>      # the client sends a SYN
//! client <- S. 0:0 ack 1 <mss 1460,sackOK>         # and gets this answer, and no other
//! client -> P. 1:518 ack 1
//! backend <- S 0:0 <mss 1460,sackOK>
//! ```
//!
//! `->` is what an end sends, `<-` what arrives at it. Flags are `S F R P U E W` and `.` for ACK, or `-` for none;
//! `begin:end` counts payload, as tcpdump does. All numbers are relative: one's own to one's first, the other end's to the
//! first heard from it; timestamps of one's own clock are as sent, the other's relative to the first heard, which is 1. `*`
//! is any number, `<...>` any options; without `<>` there are none. NOPs are not compared. Payload is not written down: each end
//! has a stream of its own (a client's begins with its hello), and every byte that arrives is compared with it.
//!
//! Between two steps nothing may arrive that no line expects. Ends: `client`, `client2`, ... (ports 40000, 40002, ...),
//! `forger` (a stranger on `client`'s addresses and ports, with numbers of its own), `backend` (tenant a's), `other`
//! (tenant b's); `backend/2` is the second connection there. Other steps:
//!
//! ```text
//! set listener tcp            # what clients dial: tls (the default) or tcp, tenant a's port
//! set isn client 0xfffffff0   # an end's first number
//! set hello client tenant-b 600
//! set ports 1024-1025         # source ports of the node
//! use open                    # the steps of tests/script/open.inc
//! stream backend 1:100001 by 1000 ack 518    # segments of 1,000 bytes, each of which arrives as it was sent
//! anew client tenant-b        # the client begins anew on its port, with other numbers
//! age 7200                    # seconds pass, for everything that is kept
//! sweep                       # the daemon looks for what is over
//! counts ForwardClient=2      # what was counted since the last such line, all of it
//! entries flows=1 nats=1      # what is kept
//! ```

/// Text to steps.
pub mod parse;
/// The ends and what they know.
mod end;
/// Plays steps.
mod play;
/// What packets look like in the words of a script.
mod show;

pub use play::play;

use common::reason::Reason;

/// A line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: usize,
    pub text: String,
    pub step: Step,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Clients dial a TCP listener instead of the TLS one.
    TcpListener,
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
    /// Both bits of the IP header.
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
