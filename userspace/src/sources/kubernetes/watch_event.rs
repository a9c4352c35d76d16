//! What the watches report to the store.

use super::source::Source;
use crate::model::advertisement::{AdvertisementSpec, ClusterNode};
use crate::model::cluster::{
    ClassSpec, ClusterRoute, Endpoint, GatewaySpec, GrantSpec, Labels, ListenerSetSpec, PoolSpec, ServiceSpec,
};
use crate::model::{Announcement, Meta, ObjectName, OriginObject, Problem, StoredClaim};
use std::sync::Arc;

/// One report of a watch.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) source: Source,
    /// Which watch of the source reports it: late reports of an ended one are ignored.
    pub(super) epoch: u64,
    pub(super) news: WatchEvent,
}

#[derive(Debug)]
pub(super) enum WatchEvent {
    /// All there are.
    Listed(Vec<Entry>),
    /// New or changed.
    Put(Box<Entry>),
    /// Gone.
    Gone(ObjectName),
    /// It cannot be followed, and why.
    Stale(String),
    /// It can be followed again.
    Fresh,
    /// Its CRD is there: it is watched from now on, in this version.
    Present(&'static str),
    /// Its CRD is known not to be there.
    Absent,
    /// The release of the Gateway API that its CRD is of, as the CRD says.
    Bundle(Option<String>),
}

/// An object, folded.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: ObjectName,
    pub(super) body: Body,
    pub(super) problems: Vec<Problem>,
    pub(super) status: Option<StoredStatus>,
}

/// The status of an object as last received.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredStatus {
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `status`; null where there is none.
    pub status: serde_json::Value,
}

#[derive(Debug)]
pub(super) enum Body {
    /// `None`: of another controller.
    Class(Option<Arc<ClassSpec>>),
    Gateway(Arc<GatewaySpec>),
    ListenerSet(Arc<ListenerSetSpec>),
    TlsRoute(Arc<ClusterRoute>),
    TcpRoute(Arc<ClusterRoute>),
    Grant(Arc<GrantSpec>),
    Namespace(Arc<Labels>),
    Service(Arc<ServiceSpec>),
    Slice(Slice),
    /// Of what an origin reads; `None`: it is none of ours.
    Origin(Option<OriginObject>),
    Pool(Arc<PoolSpec>),
    Advertisement(Arc<AdvertisementSpec>),
    Node(Arc<ClusterNode>),
    /// Of what we make of MetalLB's kinds.
    Report(Arc<Meta>),
    Claim(ReadClaim),
    /// The Claim that marks that all are written.
    Mark(Mark),
    /// What the cluster announces; `None`: it cannot be read.
    Announcement(Option<Arc<Announcement>>),
}

/// A Claim, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadClaim {
    /// `metadata.resourceVersion`; `None`: it is no number.
    pub(super) version: Option<u64>,
    /// `None`: it cannot be read.
    pub(super) claim: Option<StoredClaim>,
    /// Whose it is, as in NodeStates, if something of it cannot be read; `None`: nor can that.
    pub(super) origin: Option<Arc<str>>,
}

/// What the mark says that all Claims are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its `metadata.resourceVersion`.
    pub(super) version: u64,
    /// Whether Vestibule is withdrawn from the cluster.
    pub(super) is_withdrawn: bool,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// The name of its Service, which is in its namespace.
    pub(super) service: Arc<str>,
    /// Sorted; each (port name, address, port) once.
    pub(super) endpoints: Arc<[Endpoint]>,
}
