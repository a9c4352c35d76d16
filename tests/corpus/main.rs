//! Corpus level: every recorded and adversarial hello yields the verdict of its manifest.

mod host;
mod kernel;
mod replay;
