/// One segment, and others that do what a test says.
mod lab;
/// When an address is bid for.
mod bids;
/// What is known of an address, for people.
mod known;
/// Who had an address before.
mod previous;
/// When a node is silent, and when its gate is closed.
mod silence;
/// What tables change.
mod tables;
/// Many addresses.
mod many;
/// A segment of several nodes in virtual time.
mod simulation;
