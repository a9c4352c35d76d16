//! What keeps the kernel's side in step with what is desired and with the node's network; `vestibule run`, which takes
//! it from a file.

/// Which devices have the program.
mod devices;
/// The ways to backends.
mod ways;
/// Why the kernel is not in step.
mod error;
/// What the kernel holds, and how it is brought in step.
mod control;
/// The thread that ends connections.
mod keeper;
/// Messages to the service manager.
mod notify;
/// The loop.
mod run;

pub(crate) use control::{Control, Done, Prepared};
pub(crate) use devices::Choice;
pub use error::StartError;
pub use run::{Options, run};
