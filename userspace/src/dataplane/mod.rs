//! Access to the kernel from user space. The only folder that uses aya and bpf(2).

/// The bpf(2) commands that aya lacks.
mod syscall;
/// A pinned map with its types.
pub mod table;
/// The number of entries of each map.
pub mod sizes;
/// The memory of the maps.
pub mod memory;
/// The pin folder and the right to write there.
pub mod pin;
/// Which thread looks at the flows first.
pub mod precedence;
/// Loads programs and maps into the kernel.
pub mod load;
/// Attaches the program to devices.
pub mod attach;
/// Attaches the XDP program to devices.
pub mod front;
/// The programs on a device.
pub mod hooks;
/// The pinned maps.
pub mod maps;
/// Writes planned changes to the maps.
pub mod apply;
/// Reads the maps.
pub mod read;
/// Evictions of waiting hellos.
pub mod evictions;
/// Ends connections where no packet triggers it.
pub mod expire;
/// Ends flows behind backends, found by the keys of their replies.
pub mod behind;
/// What sweeps found, for scrapes.
pub mod swept;
/// What the program `expire` is given.
mod request;
/// Runs the program `expire`.
mod runner;
/// What calls for a walk over all flows.
mod awaited;
/// Time limits.
pub mod due;
/// Flows held open without progress.
pub mod held;
/// Flows that are evicted in a crowded map.
mod crowd;
/// Flows that are evicted to a backend with few source ports left.
mod ports;
/// Counts of sources that are not needed.
mod sources;
/// What is left of connections that are gone.
mod leftovers;
/// Source ports without a connection.
mod orphans;
/// Flows whose ends are asked by probes.
mod trials;
/// Flows whose ends are asked because they were silent for long.
pub mod keepalive;
/// Probes of flows' ends.
mod probes;
/// Packets as they leave.
pub mod trace;

pub use load::OBJECT;
