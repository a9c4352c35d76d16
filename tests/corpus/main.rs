//! Corpus level: every recorded and adversarial hello gives its manifest's verdict.

mod host;
mod kernel;
mod replay;
