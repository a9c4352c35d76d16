//! What is known of segments, as `vestibule vips` reads it.

use serde::{Deserialize, Serialize};

use super::wanted::OnDevice;

/// What a node knows of its segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Picture {
    pub vips: Vec<VipShown>,
    pub candidates: Vec<CandidateShown>,
}

/// An address on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VipShown {
    pub address: String,
    /// Index of the device.
    pub device: u32,
    /// Who announces it: a node's name, or its number where the cluster does not name it any more; `None`: nobody.
    pub node: Option<String>,
    /// Why nobody does; empty: a node does.
    pub waits: String,
    pub epoch: Option<u64>,
    /// Milliseconds of Unix time; `None`: not known.
    pub since_ms: Option<u64>,
    /// As `vestibule vips` shows it; `None`: not known.
    pub why: Option<String>,
    /// Nodes whose tables have it.
    pub claims: Vec<ClaimShown>,
    /// How many nodes may announce it.
    pub candidates: usize,
    /// The link address of a foreign host that answers for it.
    pub foreign: Option<String>,
}

/// A claim of a node for an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimShown {
    pub node: String,
    pub epoch: u64,
}

/// Another node that may announce something on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CandidateShown {
    pub node: String,
    /// Name of the device of this node.
    pub device: String,
    /// Its link address; `None`: nothing was ever received of it.
    pub link_address: Option<String>,
    /// For how long nothing has been received of it; 0: it is alive.
    pub silent_seconds: u64,
    /// Its kernel is silent about its addresses, for its agent is dead.
    pub gate_closed: bool,
}

/// A part of what is known, and where the next one begins.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub picture: Picture,
    /// `None`: nothing is left.
    pub next: Option<OnDevice>,
}
