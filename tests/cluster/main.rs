//! A whole cluster: real kubelets, real pods, clients beyond a router; one file a story.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests too: a panic with its place is the report"
)]

mod ground;
