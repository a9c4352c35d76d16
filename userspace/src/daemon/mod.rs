//! `vestibule run`: what keeps the kernel's side in step with the file and with the node's network.

/// Which devices have the program.
mod devices;
/// What the kernel holds, and how it is brought in step.
mod control;
/// The thread that ends connections.
mod keeper;
/// Messages to the service manager.
mod notify;
/// The loop.
mod run;

pub use control::StartError;
pub use run::{Options, run};
