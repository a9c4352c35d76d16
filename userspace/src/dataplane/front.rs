//! Attaches the XDP program to devices: always by a link, in the driver. A program attached by netlink would stay when its
//! loader is gone, and be nobody's. The links are pinned beside those of TCX.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use super::load::{LoadError, Programs};
use super::pin::{PinError, Pins};
use super::syscall::{self, link};

/// `BPF_LINK_TYPE_XDP` of linux/bpf.h.
const LINK_TYPE: u32 = 6;

/// Why the program is not on a device.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// Another program is there.
    #[error("another XDP program is attached")]
    Taken,
    /// The driver cannot run it.
    #[error(
        "its driver cannot run XDP programs in their native mode, or not at its MTU or with its settings ({0})"
    )]
    Driver(io::Error),
    /// What was made is not what was asked for.
    #[error("the kernel made a link of type {kind} on device {ifindex} of it")]
    Link {
        /// `enum bpf_link_type`.
        kind: u32,
        /// Its device.
        ifindex: u32,
    },
    /// The kernel refused for another reason.
    #[error("the kernel refuses: {0}")]
    Refused(#[from] io::Error),
    /// The program cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A pin cannot be read or written.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// Attaches the program to a device. In a link that is pinned already, it replaces the one of an earlier start: no frame passes
/// without one. `shown` as in [`program`]. Returns whether there was no such link.
pub fn attach(
    programs: &mut Programs,
    pins: &Pins,
    ifindex: u32,
    shown: Option<u32>,
) -> Result<bool, FrontError> {
    let program = programs.front()?;
    if let Some(pinned) = open(pins, ifindex)? {
        if is_on(&link::info(&pinned)?, ifindex, shown) {
            link::update(&pinned, program)?;
            return check(&pinned, ifindex).map(|_| false);
        }
        detach(pins, ifindex)?;
    }
    let made = link::create(program, ifindex).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => FrontError::Taken,
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE) => FrontError::Driver(error),
        _ => FrontError::Refused(error),
    })?;
    check(&made, ifindex)?;
    let path = pins.front(ifindex);
    link::pin(&made, &path).map_err(PinError::io(&path, "pin"))?;
    Ok(true)
}

/// Reads back what the kernel has made.
fn check(made: &OwnedFd, ifindex: u32) -> Result<link::LinkInfo, FrontError> {
    let info = link::info(made)?;
    match (info.kind, info.ifindex) == (LINK_TYPE, ifindex) {
        true => Ok(info),
        false => Err(FrontError::Link { kind: info.kind, ifindex: info.ifindex }),
    }
}

/// Returns the id of the program in our link on the device; `None`: we have none there. `shown`: the XDP program that rtnetlink shows on
/// the device.
pub fn program(pins: &Pins, ifindex: u32, shown: Option<u32>) -> Result<Option<u32>, FrontError> {
    let Some(pinned) = open(pins, ifindex)? else { return Ok(None) };
    let info = link::info(&pinned)?;
    Ok(is_on(&info, ifindex, shown).then_some(info.program))
}

/// Whether the link is on this device. Its device may be gone, and then it has the index 0; or be in another network namespace, where
/// indices are others: only what rtnetlink shows is of this one.
fn is_on(info: &link::LinkInfo, ifindex: u32, shown: Option<u32>) -> bool {
    (info.kind, info.ifindex, Some(info.program)) == (LINK_TYPE, ifindex, shown)
}

fn open(pins: &Pins, ifindex: u32) -> Result<Option<OwnedFd>, FrontError> {
    match syscall::open_pinned(&pins.front(ifindex)) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Detaches the program from a device, or removes the link of a device that is gone.
pub fn detach(pins: &Pins, ifindex: u32) -> Result<(), PinError> {
    let path = pins.front(ifindex);
    if let Ok(pinned) = syscall::open_pinned(&path) {
        // The link of a device that is gone has nothing to detach.
        let _ = link::detach(&pinned);
    }
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PinError::io(&path, "remove")(e)),
        _ => Ok(()),
    }
}

/// Detaches the program from all devices. What is only unpinned, the kernel frees some time later: until then the program would answer
/// for which there is none behind it, and keep another one from the device.
pub fn detach_all(pins: &Pins) -> Result<(), PinError> {
    pins.front_devices()?.into_iter().try_for_each(|ifindex| detach(pins, ifindex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_on_a_device_if_type_index_and_program_are_the_devices() {
        let info = |kind, ifindex| {
            let mut info = link::LinkInfo::default();
            (info.kind, info.program, info.ifindex) = (kind, 7, ifindex);
            info
        };
        let on_3 = info(LINK_TYPE, 3);
        assert!(is_on(&on_3, 3, Some(7)));
        assert!(!is_on(&on_3, 4, Some(7)) && !is_on(&on_3, 3, Some(8)) && !is_on(&on_3, 3, None));
        assert!(!is_on(&info(LINK_TYPE + 1, 3), 3, Some(7)), "of another type");
        assert!(!is_on(&info(LINK_TYPE, 0), 3, Some(7)), "its device is gone");
    }
}
