//! Every RST has its reason: those that are captured at the node are compared with those that were counted.

/// Captured RSTs.
pub mod capture;
/// Their comparison with the counters.
pub mod ledger;
