//! Claims as the API server has them, what is reported of them, and writes of them.

use crate::sources::kubernetes::api::claim::ClaimSpec;
use std::collections::BTreeMap;

/// A Claim as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// What it says.
    pub(super) spec: ClaimSpec,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    /// `metadata.uid`.
    pub(super) uid: String,
    /// Whether it says that Vestibule is withdrawn from the cluster.
    pub(super) is_withdrawn: bool,
}

/// A write of a Claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimWrite {
    /// There is none yet.
    Create(ClaimSpec),
    /// It says something else, in this version.
    Replace(ClaimSpec, String),
    /// Nobody asks for it any more: this one, in this version.
    Delete { uid: String, version: String },
}

/// How a write of a Claim has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    /// It was done, or is not needed any more.
    Written,
    Failed,
    /// The API server has taken out part of it: its definition of Claims is of another release.
    Pruned,
}

/// Why a write of a Claim has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What the API server, or one of its webhooks, says.
    pub(super) why: String,
    /// Whether this Claim is refused for what it says: others may be taken.
    pub(super) is_refusal: bool,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, is_refusal: false }
    }
}

/// What the watch reports.
#[derive(Debug)]
pub(super) enum ClaimNews {
    /// These are all, at this version of the API server.
    Listed(BTreeMap<String, Stored>, u64),
    /// New or changed.
    Put(String, Box<Stored>),
    /// Gone.
    Gone(String),
}
