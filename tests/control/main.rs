//! The control plane against a real API server, without nodes; one file a story.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests too: a panic with its place is the report"
)]

mod chart;
mod definitions;
mod restart;
