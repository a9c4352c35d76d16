//! Frames sent as fast as the kernel can: an XDP program, run by BPF_PROG_TEST_RUN with live frames, writes the frame and sends it out
//! of a device. And a program that drops whatever a device receives.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::net::Namespace;
use crate::schedule::{bpf, owned};
use crate::test_run::Arguments;

/// include/uapi/linux/bpf.h
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;
/// include/uapi/linux/if_link.h: `XDP_FLAGS_DRV_MODE`.
const DRIVER_MODE: u32 = 1 << 2;

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    /// Level, size and address of the verifier's log, the kernel's version, flags: none.
    rest: [u32; 6],
    name: [u8; NAME_BYTES],
    /// A device that the program is compiled for: none.
    device: u32,
    /// The attach type; the kernel replaces a program in a link only by one of the same.
    attach: u32,
}

/// Bytes of a program's name, with a zero behind it.
const NAME_BYTES: usize = 16;

#[repr(C)]
struct Pin {
    path: u64,
    object: u32,
    flags: u32,
}

/// An instruction: operation, registers (destination in the lower half), offset, number.
const fn instruction(operation: u8, registers: u8, offset: i16, number: i32) -> u64 {
    operation as u64 | (registers as u64) << 8 | (offset as u16 as u64) << 16 | (number as u32 as u64) << 32
}

fn returning(verdict: i32) -> [u64; 2] {
    [instruction(0xb7, 0, 0, verdict), instruction(0x95, 0, 0, 0)]
}

/// Loads a program; without a name, if it is empty.
fn load(code: &[u64], name: &str) -> Result<OwnedFd> {
    ensure!(name.len() < NAME_BYTES, "{name} is longer than a program's name");
    let mut named = [0; NAME_BYTES];
    named[..name.len()].copy_from_slice(name.as_bytes());
    let load = Load {
        kind: PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        rest: [0; 6],
        name: named,
        device: 0,
        attach: ATTACH_XDP,
    };
    owned(BPF_PROG_LOAD, &load).context("loading an XDP program")
}

/// An XDP program on a device that does the same with every frame, until it is dropped.
#[derive(Debug)]
pub struct Every {
    _link: OwnedFd,
}

impl Every {
    /// Passes every frame. A veth takes frames that XDP at its other end sends back only if it has a program itself.
    pub fn passes(namespace: &Namespace, device: &str) -> Result<Self> {
        Self::passes_as(namespace, device, "")
    }

    /// The same by a program of this name.
    pub fn passes_as(namespace: &Namespace, device: &str, name: &str) -> Result<Self> {
        Self::on(namespace, device, XDP_PASS, name)
    }

    /// Drops every frame.
    pub fn drops(namespace: &Namespace, device: &str) -> Result<Self> {
        Self::on(namespace, device, XDP_DROP, "")
    }

    fn on(namespace: &Namespace, device: &str, verdict: i32, name: &str) -> Result<Self> {
        let index = namespace.ifindex(device)?;
        namespace.run(|| {
            let program = load(&returning(verdict), name)?;
            let create = [program.as_raw_fd() as u32, index, ATTACH_XDP, DRIVER_MODE];
            let link = owned(BPF_LINK_CREATE, &create);
            Ok(Self { _link: link.with_context(|| format!("attaching a program to {device}"))? })
        })
    }
}

/// Attaches a program of this name that passes every frame as `ip` does, by netlink: it stays until it is removed. `pin` is where `ip`
/// finds it, in the BPF file system, and nothing is left there.
pub fn attach_by_netlink(namespace: &Namespace, device: &str, name: &str, pin: &Path) -> Result<()> {
    let program = load(&returning(XDP_PASS), name)?;
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let pinned = Pin { path: path.as_ptr() as u64, object: program.as_raw_fd() as u32, flags: 0 };
    bpf(BPF_OBJ_PIN, &pinned).with_context(|| format!("pinning to {}", pin.display()))?;
    let output =
        namespace.command("ip").args(["link", "set", "dev", device, "xdpdrv", "pinned"]).arg(pin).output();
    std::fs::remove_file(pin).with_context(|| format!("removing {}", pin.display()))?;
    let output = output.context("running `ip`")?;
    ensure!(output.status.success(), "`ip` refuses: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Puts a program of this name that passes every frame into a pinned XDP link, which replaces the one there.
pub fn pass_in_link(pin: &Path, name: &str) -> Result<()> {
    let (link, program) = (crate::pinned::open_link(pin)?, load(&returning(XDP_PASS), name)?);
    // The link, the program, flags, and no program that has to be there before.
    let update = [link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0];
    bpf(BPF_LINK_UPDATE, &update).with_context(|| format!("updating {}", pin.display())).map(drop)
}

/// Sends the frame `times` times out of a device of this thread's namespace.
pub fn send(index: u32, frame: &[u8], times: u32) -> Result<()> {
    send_by(index, frame, times, &writer(frame, false))
}

/// The same with the lower half of the source address at random each time: 65,536 sources. An IPv4 frame, in which that half, the
/// identification and the lower half of the sequence number are 0: what is added to the address is taken from these, so both
/// checksums stay as they are.
pub fn send_from_many(index: u32, frame: &[u8], times: u32) -> Result<()> {
    check_varied(frame)?;
    send_by(index, frame, times, &writer(frame, true))
}

/// Refuses a frame that [`send_from_many`] cannot send.
pub fn check_varied(frame: &[u8]) -> Result<()> {
    let is_zero = VARIED.iter().all(|at| frame.get(*at..*at + 2) == Some(&[0, 0]));
    ensure!(is_zero && frame[12..14] == [8, 0], "a frame of IPv4 with zeros at {VARIED:?}");
    Ok(())
}

/// The lower half of an IPv4 source address, the identification, and the lower half of a sequence number.
const VARIED: [usize; 3] = [14 + 14, 14 + 4, 14 + 20 + 6];

fn send_by(index: u32, frame: &[u8], times: u32, code: &[u64]) -> Result<()> {
    ensure!(
        frame.len().is_multiple_of(2) && frame.len() < 256,
        "{} bytes are not of this program",
        frame.len()
    );
    let program = load(code, "")?;
    // `struct xdp_md`: the frame's end at 4, the device at 12.
    let mut context = [0_u32; 6];
    (context[1], context[3]) = (frame.len() as u32, index);
    let run = Arguments {
        program: program.as_raw_fd(),
        length: frame.len() as u32,
        data: frame.as_ptr() as u64,
        repeat: times,
        context_length: size_of_val(&context) as u32,
        context: context.as_ptr() as u64,
        flags: LIVE_FRAMES,
        ..Arguments::default()
    };
    bpf(BPF_PROG_TEST_RUN, &run).with_context(|| format!("sending {times} frames")).map(drop)
}

/// Returns a program that writes the frame each time, for the receiver may have made its answer of the same memory, and sends it.
fn writer(frame: &[u8], many: bool) -> Vec<u64> {
    let mut code = Vec::new();
    let stores = frame.chunks(2).enumerate().map(|(place, two)| {
        let number = i16::from_ne_bytes([two[0], two[1]]);
        instruction(0x6a, 2, 2 * place as i16, i32::from(number))
    });
    let mut stores: Vec<u64> = stores.collect();
    // r6 = the context.
    code.push(instruction(0xbf, 0x16, 0, 0));
    if many {
        // r7 = a random number (bpf_get_prandom_u32): once as it is, twice inverted, which adds nothing to either sum.
        code.extend([instruction(0x85, 0, 0, 7), instruction(0xbf, 0x07, 0, 0)]);
        let [source, others @ ..] = VARIED;
        stores.push(instruction(0x6b, 0x72, source as i16, 0));
        stores.push(instruction(0xa7, 7, 0, -1));
        stores.extend(others.map(|at| instruction(0x6b, 0x72, at as i16, 0)));
    }
    code.extend([
        // r2 = data, r3 = its end, r4 = r2 + length; behind the end: to the last two.
        instruction(0x61, 0x62, 0, 0),
        instruction(0x61, 0x63, 4, 0),
        instruction(0xbf, 0x24, 0, 0),
        instruction(0x07, 4, 0, frame.len() as i32),
        instruction(0x2d, 0x34, (stores.len() + 2) as i16, 0),
    ]);
    code.extend(stores);
    code.extend(returning(XDP_TX));
    code.extend(returning(XDP_DROP));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_writes_its_frame_and_sends_it() {
        let code = writer(&[1, 2, 3, 0xff], false);
        assert_eq!(code.len(), 1 + 5 + 2 + 4);
        // Offset 2, bytes 3 and 0xff.
        assert_eq!(code[7], 0xffff_ff03_0002_026a);
        // The jump leads behind the first `exit`.
        assert_eq!((code[5] >> 16) as u16, 4);
        let many = writer(&[0; 60], true);
        assert_eq!(many.len(), 1 + 2 + 5 + 30 + 4 + 4);
        assert_eq!((many[7] >> 16) as u16, 30 + 4 + 2);
    }

    /// A number and its complement together add nothing to a sum of the Internet checksum (RFC 1071): in the IP header the source and
    /// the identification, under TCP's the source and the sequence number.
    #[test]
    fn what_varies_is_in_each_sum_once_as_it_is_and_once_inverted() {
        let [source, identification, sequence] = VARIED;
        assert_eq!((source, identification), (14 + 12 + 2, 14 + 4), "RFC 791");
        assert_eq!(sequence, 14 + 20 + 4 + 2, "RFC 9293");
        assert!(VARIED.iter().all(|at| at % 2 == 0));
    }
}
