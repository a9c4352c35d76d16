//! Whose programs are on a device, and in which order they run. Ours are first: what they hand on meets the others.

use std::io;

use super::pin::{Pins, program};
use super::syscall;

/// More than the kernel lets one hook have (`BPF_MPROG_MAX`).
const PROGRAMS_MAX: usize = 64;

/// Where TCX programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// What the device received.
    TcxIngress,
    /// What the device is to send.
    TcxEgress,
}

impl Hook {
    /// Both, in the order that people think of them.
    pub const ALL: [Self; 2] = [Self::TcxIngress, Self::TcxEgress];

    /// As `bpftool net` calls it.
    pub fn text(self) -> &'static str {
        match self {
            Self::TcxIngress => "tcx/ingress",
            Self::TcxEgress => "tcx/egress",
        }
    }

    /// `enum bpf_attach_type`.
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
    /// Its number.
    pub id: u32,
    /// Its name; `None`: we may not know (CAP_SYS_ADMIN tells).
    pub name: Option<String>,
}

impl Attached {
    /// A program of this number.
    pub fn of(id: u32) -> Self {
        Self { id, name: syscall::program_name(id).ok() }
    }
}

/// The programs on a hook of a device, first to last.
pub fn programs(ifindex: u32, hook: Hook) -> io::Result<Vec<Attached>> {
    let ids = syscall::programs_on(ifindex, hook.attach_type(), PROGRAMS_MAX)?;
    Ok(ids.into_iter().map(Attached::of).collect())
}

/// The number of our program for devices; `None`: none is pinned.
pub fn ours(pins: &Pins) -> io::Result<Option<u32>> {
    match syscall::open_pinned(&pins.programs().join(program::INGRESS)) {
        Ok(program) => syscall::program_id(&program).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
