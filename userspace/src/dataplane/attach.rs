//! Attaches the program to devices. The links are pinned, so they outlive the daemon.

use std::fs;
use std::io;

use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttach, TcAttachType};

use super::hooks::{self, Hook};
use super::load::{LoadError, Programs};
use super::pin::{PinError, Pins, program};

/// Why the program could not be attached to a device.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel refused.
    #[error(
        "cannot attach to device {ifindex}: {source}; `vestibule doctor` checks the kernel, capabilities and programs of the device"
    )]
    Refused {
        /// The device's index.
        ifindex: u32,
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The program is missing.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A pin cannot be read or written.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// Attaches the program to a device, before all other programs there. A link pinned by an earlier start is
/// adopted: its program is replaced atomically, so that no packet passes without one.
pub fn attach(programs: &mut Programs, pins: &Pins, ifindex: u32) -> Result<(), AttachError> {
    let path = pins.links().join(ifindex.to_string());
    let refused = |source| AttachError::Refused { ifindex, source };
    let ingress = programs.ingress()?;
    match PinnedLink::from_pin(&path) {
        Ok(pinned) => match adopt(ingress, pinned) {
            Ok(()) if runs_on(ingress, ifindex)? => return Ok(()),
            // The link's device is in another network namespace, and has this index there.
            Ok(()) => detach(pins, ifindex)?,
            // The link's device is gone; another device has its index now.
            Err(error) if is_defunct(&error) => detach(pins, ifindex)?,
            Err(error) => return Err(refused(Box::new(error))),
        },
        Err(LinkError::SyscallError(e)) if e.io_error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(Box::new(error))),
    }
    let place = TcAttach::Tcx { attach_type: TcAttachType::Ingress, order: LinkOrder::first() };
    let id = ingress.attach(ifindex, place).map_err(|e| refused(Box::new(e)))?;
    let link = ingress.take_link(id).map_err(|e| refused(Box::new(e)))?;
    let link = FdLink::try_from(link).map_err(|e| refused(Box::new(e)))?;
    link.pin(&path).map_err(|e| refused(Box::new(e)))?;
    Ok(())
}

fn adopt(ingress: &mut SchedClassifier, pinned: PinnedLink) -> Result<(), ProgramError> {
    let link = FdLink::from(pinned).try_into()?;
    let id = ingress.attach_to_link(link)?;
    // The pin keeps the link, so our descriptor may be closed.
    ingress.take_link(id).map(drop)
}

/// BPF_LINK_UPDATE returns ENOLINK for a link whose device is gone.
fn is_defunct(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(e) if e.io_error.raw_os_error() == Some(libc::ENOLINK))
}

/// Whether the kernel runs our program for what this device receives.
pub fn is_attached(programs: &mut Programs, ifindex: u32) -> Result<bool, AttachError> {
    runs_on(programs.ingress()?, ifindex)
}

fn runs_on(ingress: &SchedClassifier, ifindex: u32) -> Result<bool, AttachError> {
    let refused = |source| AttachError::Refused { ifindex, source };
    let ours = ingress.info().map_err(|e| refused(Box::new(e)))?.id();
    let ids = hooks::program_ids(ifindex, Hook::TcxIngress).map_err(|e| refused(Box::new(e)))?;
    Ok(ids.contains(&ours))
}

/// Detaches the program from a device, or removes the link of a device that is gone.
pub fn detach(pins: &Pins, ifindex: u32) -> Result<(), PinError> {
    let path = pins.links().join(ifindex.to_string());
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PinError::io(&path, "remove")(e)),
        _ => Ok(()),
    }
}

/// Returns whether the programs of an earlier start are pinned.
pub fn is_pinned(pins: &Pins) -> bool {
    pins.programs().join(program::EXPIRE).exists()
}
