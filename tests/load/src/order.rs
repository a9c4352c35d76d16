//! The conductor's orders to the load processes, and their answers: one JSON text per line.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::content::Template;

/// Where clients connect to reach a tenant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Door {
    /// All tenants share one address and are distinguished by name.
    Shared(SocketAddrV4),
    /// Each tenant has its own address, counted up from this one.
    Addresses(SocketAddrV4),
    /// Each server has its own port, counted up from this one.
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

/// Where clients connect to, and from which addresses.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Aim {
    pub door: Door,
    /// Number of host names.
    pub tenants: u32,
    /// Number of servers; tenant `t` is answered by server `t % servers`.
    pub servers: u32,
    /// The first own address, and how many there are.
    pub from: (Ipv4Addr, u32),
    /// Where the walk over tenants starts, so that two clients or two runs use different sequences.
    pub seed: u32,
}

/// Where to connect, and what to do then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The hello to start with.
    pub template: Template,
    pub aim: Aim,
    pub task: Task,
}

/// What a client must do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Connect, hello, answer, close: repeatedly, with this many connections at once.
    Connect { slots: u32, milliseconds: u64 },
    /// The same with this many new connections per second, however long each takes.
    Arrive { rate: u32, milliseconds: u64 },
    /// Requests and responses, one at a time on each of this many connections.
    Ask { connections: u32, milliseconds: u64 },
    /// Data on this many connections.
    Stream { way: Way, connections: u32, milliseconds: u64 },
    /// Opens connections that stay open.
    Hold { connections: u32 },
    /// Sends one request on each held connection.
    Check,
    /// Closes the held connections.
    Release,
    /// Connects to tenant 0 until a server other than `server` answers or the time is over.
    Turn { server: u32, milliseconds: u64 },
}

/// What a client did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Connections or requests that were answered correctly.
    pub done: u64,
    /// Bytes transferred; each was compared.
    pub bytes: u64,
    pub nanoseconds: u64,
    /// For [`Task::Arrive`]: from `connect` to the answer, median and 99th percentile, in nanoseconds.
    pub total_ns: [u32; 2],
    /// The same from `connect` to the established connection.
    pub connect_ns: [u32; 2],
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
}

impl Report {
    /// Records something that went wrong.
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

    /// The number of failures.
    pub fn failures(&self) -> u64 {
        self.errors.values().sum()
    }
}
