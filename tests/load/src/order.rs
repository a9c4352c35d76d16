//! What the conductor orders of the loads, and what they answer: one JSON text a line.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::content::Template;

/// Where clients dial a tenant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Door {
    /// All tenants at one address: by name.
    Shared(SocketAddrV4),
    /// Each tenant has an address of its own, counted up from this one.
    Addresses(SocketAddrV4),
    /// Each server has a port of its own, counted up from this one.
    Ports(SocketAddrV4),
}

impl Door {
    /// The address of a tenant whose connections the server `server` answers.
    pub fn of(self, tenant: u32, server: u32) -> SocketAddrV4 {
        match self {
            Self::Shared(at) => at,
            Self::Addresses(first) => {
                SocketAddrV4::new(Ipv4Addr::from(u32::from(*first.ip()) + tenant), first.port())
            }
            Self::Ports(first) => SocketAddrV4::new(*first.ip(), first.port() + server as u16),
        }
    }
}

/// The direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// From the backend to the client.
    Down,
    /// From the client to the backend.
    Up,
}

/// Whom clients dial, and from where.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Aim {
    pub door: Door,
    /// Host names.
    pub tenants: u32,
    /// Servers; tenant `t` is answered by server `t % servers`.
    pub servers: u32,
    /// Own addresses, counted up from the first.
    pub from: (Ipv4Addr, u32),
    /// Where the walk over tenants begins, so that two clients and two runs do not ask alike.
    pub seed: u32,
}

/// Whom to dial, and what to do then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The hello to begin with.
    pub template: Template,
    pub aim: Aim,
    pub task: Task,
}

/// What a client is to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Connect, hello, answer, close: again and again on this many slots at once.
    Connect { slots: u32, milliseconds: u64 },
    /// The same, this many connections a second however long each takes.
    Arrive { rate: u32, milliseconds: u64 },
    /// Requests and responses, one at a time on each of this many connections.
    Ask { connections: u32, milliseconds: u64 },
    /// Data on this many connections.
    Stream { way: Way, connections: u32, milliseconds: u64 },
    /// Opens connections that stay open.
    Hold { connections: u32 },
    /// Asks once on each connection that is held.
    Check,
    /// Closes what is held.
    Release,
    /// Connects to tenant 0 until another server than `server` answers or the time is over.
    Turn { server: u32, milliseconds: u64 },
}

/// What a client did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Connections answered rightly, or requests.
    pub done: u64,
    /// Bytes carried, each compared.
    pub bytes: u64,
    pub nanoseconds: u64,
    /// Of connections that arrive: from `connect` to the answer, median and 99th percentile, nanoseconds.
    pub total_ns: [u32; 2],
    /// From `connect` to the established connection.
    pub connect_ns: [u32; 2],
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
}

impl Report {
    /// Notes something that went wrong.
    pub fn wrong(&mut self, what: impl Into<String>) {
        *self.errors.entry(what.into()).or_default() += 1;
    }

    /// Adds what another client did at the same time.
    pub fn add(&mut self, other: Self) {
        self.done += other.done;
        self.bytes += other.bytes;
        self.nanoseconds = self.nanoseconds.max(other.nanoseconds);
        // Only one client measures times.
        for at in 0..2 {
            self.total_ns[at] = self.total_ns[at].max(other.total_ns[at]);
            self.connect_ns[at] = self.connect_ns[at].max(other.connect_ns[at]);
        }
        for (what, times) in other.errors {
            *self.errors.entry(what).or_default() += times;
        }
    }

    /// How much went wrong.
    pub fn failures(&self) -> u64 {
        self.errors.values().sum()
    }
}
