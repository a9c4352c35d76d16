//! The programs on a device and their order. Ours is first: the others receive only what it passes on.

use std::io;

use super::pin::{Pins, program};
use super::syscall;

/// More programs than the kernel allows on one hook (`BPF_MPROG_MAX`).
const PROGRAMS_MAX: usize = 64;

/// A hook where TCX programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that the device received.
    TcxIngress,
    /// Packets that the device is about to send.
    TcxEgress,
}

impl Hook {
    /// Both hooks, ingress first.
    pub const ALL: [Self; 2] = [Self::TcxIngress, Self::TcxEgress];

    /// The name that `bpftool net` shows.
    pub fn text(self) -> &'static str {
        match self {
            Self::TcxIngress => "tcx/ingress",
            Self::TcxEgress => "tcx/egress",
        }
    }

    /// The value of `enum bpf_attach_type`.
    fn attach_type(self) -> u32 {
        match self {
            Self::TcxIngress => 46,
            Self::TcxEgress => 47,
        }
    }
}

/// A program in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its id.
    pub id: u32,
    /// Its name; `None`: it has none, or none that can be read (requires CAP_SYS_ADMIN).
    pub name: Option<String>,
}

impl Attached {
    /// Looks up the program with this id.
    pub fn of(id: u32) -> Self {
        Self { id, name: syscall::program_name(id).ok().filter(|name| !name.is_empty()) }
    }
}

/// Returns the ids of the programs on a hook of a device, in the order they run.
pub fn program_ids(ifindex: u32, hook: Hook) -> io::Result<Vec<u32>> {
    syscall::programs_on(ifindex, hook.attach_type(), PROGRAMS_MAX)
}

/// Returns the programs on a hook of a device, in the order they run.
pub fn programs(ifindex: u32, hook: Hook) -> io::Result<Vec<Attached>> {
    Ok(program_ids(ifindex, hook)?.into_iter().map(Attached::of).collect())
}

/// Returns the id of our pinned program for devices; `None`: none is pinned.
pub fn ours(pins: &Pins) -> io::Result<Option<u32>> {
    match syscall::open_pinned(&pins.programs().join(program::INGRESS)) {
        Ok(program) => syscall::program_id(&program).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
