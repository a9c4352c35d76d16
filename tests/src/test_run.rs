//! BPF_PROG_TEST_RUN of a classifier, with its flags.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The command of bpf(2).
const PROG_TEST_RUN: libc::c_int = 10;
/// The packet comes with a sum over all of it from its device (CHECKSUM_COMPLETE), and the run fails with EBADMSG if the sum
/// does not fit what the program made of the packet.
pub(crate) const SUMMED: u32 = 1 << 2;

/// The arguments in `union bpf_attr` (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) program: i32,
    pub(crate) answer: u32,
    pub(crate) length: u32,
    pub(crate) length_out: u32,
    pub(crate) data: u64,
    pub(crate) data_out: u64,
    pub(crate) repeat: u32,
    pub(crate) duration: u32,
    pub(crate) context_length: u32,
    pub(crate) context_length_out: u32,
    pub(crate) context: u64,
    pub(crate) context_out: u64,
    pub(crate) flags: u32,
    pub(crate) cpu: u32,
    pub(crate) batch: u32,
    pub(crate) padding: u32,
}

/// Runs the program once on a frame; `context` is the leading part of `struct __sk_buff`. Returns what the program returned
/// and the length of the frame in `out`.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    out: &mut [u8],
    context: &[u8],
    flags: u32,
) -> io::Result<(u32, usize)> {
    let mut arguments = Arguments {
        length_out: out.len() as u32,
        data_out: out.as_mut_ptr() as u64,
        flags,
        ..of(program, frame, context)
    };
    call(&mut arguments)?;
    Ok((arguments.answer, arguments.length_out as usize))
}

/// Runs the program once on a frame, as [`test_run`] does. Returns what the program returned, and the nanoseconds that it took.
pub(crate) fn timed(program: BorrowedFd<'_>, frame: &[u8], context: &[u8]) -> io::Result<(u32, u32)> {
    let mut arguments = of(program, frame, context);
    call(&mut arguments)?;
    Ok((arguments.answer, arguments.duration))
}

/// Returns the arguments of a run that returns no frame.
fn of(program: BorrowedFd<'_>, frame: &[u8], context: &[u8]) -> Arguments {
    Arguments {
        program: program.as_raw_fd(),
        length: frame.len() as u32,
        data: frame.as_ptr() as u64,
        context_length: context.len() as u32,
        context: context.as_ptr() as u64,
        ..Arguments::default()
    }
}

/// The addresses in the arguments must be those of slices that live through the call.
fn call(arguments: &mut Arguments) -> io::Result<()> {
    // SAFETY: the arguments have the kernel's layout, and what their addresses lead to lives through the call, as both callers see to.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_TEST_RUN,
            &raw mut *arguments,
            size_of::<Arguments>() as libc::c_uint,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
