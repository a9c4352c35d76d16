//! The kernel's side of things, as seen from user space. The only folder that knows aya and bpf(2).

/// The bpf(2) commands that aya lacks.
mod syscall;
/// A pinned map with its types.
pub mod table;
/// How many entries each map has.
pub mod sizes;
/// What is pinned where, and who may write it.
pub mod pin;
/// Programs and maps into the kernel.
pub mod load;
/// The program on devices.
pub mod attach;
/// Whose programs are on a device.
pub mod hooks;
/// The pinned maps.
pub mod maps;
/// Changes -> map writes.
pub mod apply;
/// What the maps say.
pub mod read;
/// Hellos that gave way.
pub mod evictions;
/// What no packet triggers.
pub mod expire;

pub use load::OBJECT;
