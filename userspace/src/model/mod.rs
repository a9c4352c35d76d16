//! Checked words: whatever the source, these are what the rest of the program talks about.

/// Server names, and the patterns that routes match them with.
pub mod name;
/// What a source says: listeners, routes, backends, settings.
pub mod facts;
/// What a node says of itself.
pub mod node;
/// What decides about announcing.
pub mod advertisement;
/// Who announces which addresses.
pub mod announcement;
/// What changed at a source, entry by entry.
pub mod delta;
/// Long lists that share what did not change.
pub mod shared_list;
/// The desired state of the data plane, without contradictions.
pub mod desired;
/// The kinds of Kubernetes objects that ask for something.
pub mod kind;
/// Kinds that only later releases know.
mod unknown_kind;
/// Names of Kubernetes objects, and what every object has.
pub mod object;
/// What Kubernetes objects say, folded to what decisions need.
pub mod cluster;
/// Services and their endpoints.
pub mod service;
/// Labels, and what selects by them.
pub mod labels;
/// Source ranges: whose connections a route admits.
pub mod source_ranges;
/// Pools of addresses: what they hold, and whom they admit.
pub mod pool;
/// Values whose type their origin alone knows.
pub mod opaque;
/// Objects of the kinds in the table of origins.
pub mod origin_objects;
/// What an origin asks, and what it was granted.
pub mod claim;
/// Where the connections of a claim go.
mod claim_backend;
/// What becomes of each Kubernetes object.
pub mod verdict;
/// What was granted before.
pub mod possession;
/// Digests of names.
pub mod digest;
/// What is wrong, where, and what to do about it.
pub mod problem;
/// Reasons of Events on Services.
pub mod event_reason;
/// What a node counts on its segments.
pub mod segment_counts;
/// Ports at which nodes say whether they lead to endpoints of a Service.
pub mod health_check;

pub use announcement::{Announcement, AnnouncementRule};
pub use claim::{Claim, ClaimSet, Origin, StoredClaim};
pub use cluster::Cluster;
pub use delta::{Change, Delta, Places};
pub use desired::{Desired, DesiredListener, DesiredRoute, Elsewhere, Probe, ProbeChange, Probes};
pub use event_reason::EventReason;
pub use facts::{BackendSpec, Facts, L2, ListenerSpec, Protocol, RouteSpec, Settings};
pub use health_check::HealthCheck;
pub use kind::{Kind, KindRow, Resource};
pub use name::{InvalidName, Pattern, ServerName};
pub use node::{Link, Node, NodeFacts};
pub use object::{Meta, ObjectName, ObjectRef, TENANT};
pub use opaque::{Opaque, Opaques};
pub use origin_objects::{OriginObject, OriginObjects};
pub use possession::Possession;
pub use problem::{Problem, Severity};
pub use segment_counts::{SegmentCounts, Segments};
pub use service::{Affinity, TrafficPolicy};
pub use shared_list::{Difference, Named, SharedList};
pub use source_ranges::SourceRanges;
pub use unknown_kind::unknown_kind;
pub use verdict::Verdicts;
