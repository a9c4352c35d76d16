/// Each rule alone.
mod rules;
/// A segment of several nodes in virtual time.
mod simulation;
