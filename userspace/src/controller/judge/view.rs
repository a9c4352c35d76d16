//! What a judgement is based on.

use crate::controller::health::Failing;
use crate::controller::reports::{Basis, Reporting};
use crate::model::cluster::PoolsClosed;
use crate::model::{Cluster, ObjectRef};
use crate::sources::kubernetes::{Source, StoredStatus};
use crate::status::Nodes;
use std::collections::BTreeSet;
use std::time::Instant;

/// Everything that a judgement is based on.
pub(in crate::controller) struct View<'a> {
    /// The objects of the cluster.
    pub(in crate::controller) cluster: &'a Cluster,
    /// Their status as last received.
    pub(in crate::controller) status: &'a dyn Fn(&ObjectRef) -> Option<&'a StoredStatus>,
    /// Release of the installed Gateway API CRDs.
    pub(in crate::controller) bundle: Option<&'a str>,
    /// What the nodes with live agents hold.
    pub(in crate::controller) nodes: &'a Nodes,
    /// Backends that live nodes see down.
    pub(in crate::controller) failing: &'a Failing,
    /// Why nothing is taken from MetalLB's pools.
    pub(in crate::controller) metallb: Option<PoolsClosed>,
    /// The current time, in RFC 3339, UTC.
    pub(in crate::controller) now: &'a str,
    /// The same time.
    pub(in crate::controller) at: Instant,
    /// What is not listed, and is not waited for.
    pub(in crate::controller) unlisted: BTreeSet<Source>,
    /// What nodes announce, and which of the kinds that say so the cluster has.
    pub(in crate::controller) reporting: &'a Reporting,
}

impl<'a> View<'a> {
    /// What the objects follow from that are made for others to read.
    pub(in crate::controller) fn basis(&self) -> Basis<'a> {
        Basis {
            cluster: self.cluster,
            status: self.status,
            reporting: self.reporting,
            is_alone: self.metallb.is_none(),
            unlisted: self.unlisted.clone(),
            now: self.now,
        }
    }
}
