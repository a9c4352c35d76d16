//! `Claim`: what an origin asks, and what it was granted. The CRD in `deploy/` is generated from these types.

pub use super::claim_address::ClaimAddress;
pub use super::claim_backend::{ClaimBackend, ClaimEndpoint, ClaimProbe, ClaimService};
pub use super::claim_grant::{ClaimGrant, ClaimRefusal};
pub(in super::super) use super::claim_grant::{REMEDY, protocol};
use crate::model;
use crate::model::claim::{ClaimBackends, Grant, Wishes};
use crate::model::{Affinity, Origin, Pattern, TrafficPolicy};
use k8s_openapi::jiff::Timestamp;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// [`ClaimSpec::session_affinity`].
pub(in super::super) const CLIENT_IP: &str = "ClientIP";
/// Key of [`ClaimSpec::policy`]: a list of CIDRs.
pub(in super::super) const SOURCE_RANGES: &str = "sourceRanges";
/// Key of [`ClaimSpec::policy`]: [`LOCAL`].
pub(in super::super) const TRAFFIC: &str = "externalTrafficPolicy";
/// The value of [`TRAFFIC`].
pub(in super::super) const LOCAL: &str = "Local";
/// The longest readable part of a Claim's name. With a hash behind it, it is a DNS label (RFC 1123).
const PREFIX_MAX: usize = 38;
/// Bytes of the hash, each two digits.
const HASH_BYTES: usize = 12;
/// Name of the Claim that the controller writes once all others are written. Without it, a list of Claims is not known to be
/// whole. It is listed before all others, so that it is also the first to go when all are deleted.
pub const SETTLED: &str = "0-settled";
/// Annotation of [`SETTLED`]: Vestibule is withdrawn from the cluster, and no node takes new connections.
pub const WITHDRAWN: &str = "vestibule.dev/withdrawn";

/// What an origin asks of the load balancer at one attachment, and what it was granted. Written by the controller alone;
/// cluster-scoped.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "vestibule.dev",
    version = "v1alpha1",
    kind = "Claim",
    plural = "claims",
    doc = "What a route, listener or Service asks of Vestibule at one attachment, and what it was granted.",
    printcolumn = r#"{"name":"Kind","type":"string","jsonPath":".spec.origin.kind"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.origin.namespace"}"#,
    printcolumn = r#"{"name":"Origin","type":"string","jsonPath":".spec.origin.name"}"#,
    printcolumn = r#"{"name":"Protocol","type":"string","jsonPath":".spec.protocol"}"#,
    printcolumn = r#"{"name":"Port","type":"integer","jsonPath":".spec.port"}"#,
    printcolumn = r#"{"name":"Granted","type":"integer","jsonPath":".spec.granted"}"#,
    printcolumn = r#"{"name":"Refused","type":"integer","jsonPath":".spec.refused"}"#,
    printcolumn = r#"{"name":"Tenant","type":"string","priority":1,"jsonPath":".spec.tenant"}"#,
    printcolumn = r#"{"name":"Part","type":"string","priority":1,"jsonPath":".spec.origin.part"}"#,
    printcolumn = r#"{"name":"Address","type":"string","priority":1,"jsonPath":".spec.grants[0].address"}"#,
    printcolumn = r#"{"name":"Names","type":"string","priority":1,"jsonPath":".spec.matches"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".spec.refusals[0].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// Who claims.
    pub origin: ClaimOrigin,
    /// Whose it is: an identity that several claims share. It begins with the origin's namespace, or with that one's label
    /// `vestibule.dev/tenant`; the origin's own label follows a slash.
    pub tenant: String,
    /// The addresses that it asks for.
    #[serde(default)]
    pub address: ClaimAddress,
    /// `TLS`, `TCP`, `UDP` or `SCTP`. Nothing is granted of the last two.
    pub protocol: String,
    /// The port that it asks for.
    pub port: i32,
    /// The pool of which it asks for any port instead. Nothing is asked so as yet: an agent admits no connection to such a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_pool: Option<String>,
    /// The server names that it asks for, as written: `a.example.com`, `*.example.com`, or `*.example.com (one label)`;
    /// empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<String>,
    /// CIDRs of the clients that it asks for them for; empty: all. Unlike a policy, it leaves other clients to others. Nothing is
    /// asked so as yet: an agent admits no connection to such a claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_ranges: Vec<String>,
    /// Of two that ask for the same, the one with the larger number comes first. Absent: the one of the older origin, then of the
    /// first by kind, namespace and name. Nothing is asked so as yet: an agent admits no connection to such a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precedence: Option<i64>,
    /// What maps and metrics call the route that it leads to; claims of one origin that lead to the same backends share it.
    #[serde(default)]
    pub route: String,
    /// Where connections go; empty: they are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<ClaimBackend>,
    /// The server name that the hello of a TLS probe asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_server_name: Option<String>,
    /// `ClientIP`: all connections of an address reach the same endpoint, while the endpoints stay the same. Absent: those of an
    /// address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<String>,
    /// What connections must comply with besides. `sourceRanges`: a list of CIDRs, of which one must hold the client's address.
    /// `externalTrafficPolicy`: `Local`, by which a node leads only to endpoints that are on it, and these see the client's address. An
    /// agent admits no connection to a claim with a policy that it does not know.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub policy: BTreeMap<String, serde_json::Value>,
    /// The port of each node at which it says by HTTP whether it leads to ready endpoints of the Service that claims, where agents are to
    /// serve such ports. Only with policy `externalTrafficPolicy`. An agent that does not know it leaves the port to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<i32>,
    /// Number of `grants`.
    pub granted: i64,
    /// Number of `refusals`.
    pub refused: i64,
    /// What it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<ClaimGrant>,
    /// What it asked for and has not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<ClaimRefusal>,
}

/// Who claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimOrigin {
    /// As in `kind:` of a manifest.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// `metadata.uid` of the object.
    pub uid: String,
    /// `metadata.creationTimestamp` of the object, in RFC 3339, UTC: of two that do not fit into the maps, the older is served.
    #[serde(default)]
    pub created: String,
    /// Which of the object's claims it is.
    pub part: String,
}

impl Claim {
    /// Its definition, as the API server takes it. As JSON, whose objects have their keys sorted.
    pub fn definition() -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(Self::crd())
    }
}

impl ClaimSpec {
    /// Returns what a claim's object says, as if all had been granted at `now`.
    pub fn of(origin: ClaimOrigin, claim: &model::Claim, now: &str) -> Self {
        let mut grants: Vec<ClaimGrant> =
            claim.grants.iter().map(|grant| ClaimGrant::of(grant, now)).collect();
        grants.sort_by(|a, b| a.key().cmp(&b.key()));
        let nothing = Wishes::default();
        let asked = claim.asked.as_deref().unwrap_or(&nothing);
        let refusals: Vec<ClaimRefusal> = asked.refusals.iter().map(ClaimRefusal::of).collect();
        let (backends, probe_server_name) = match &claim.backends {
            ClaimBackends::Services { references, server_name } => {
                let backends = references.iter().map(ClaimBackend::of).collect();
                (backends, server_name.as_ref().map(ToString::to_string))
            }
            ClaimBackends::Addresses(backends) => {
                (backends.iter().map(ClaimBackend::of_address).collect(), None)
            }
            ClaimBackends::None => (Vec::new(), None),
        };
        Self {
            tenant: claim.tenant.as_deref().unwrap_or_default().to_owned(),
            address: ClaimAddress::of(&asked.address),
            protocol: claim.protocol.text().to_owned(),
            port: claim.port.into(),
            port_pool: None,
            matches: asked.matches.iter().map(Pattern::to_string).collect(),
            client_ranges: Vec::new(),
            precedence: None,
            route: claim.route.as_deref().unwrap_or_default().to_owned(),
            backends,
            probe_server_name,
            session_affinity: (claim.affinity == Affinity::ClientIp).then(|| CLIENT_IP.to_owned()),
            policy: policy(claim),
            health_check_node_port: claim.health_port.map(|port| port.get().into()),
            granted: grants.len() as i64,
            refused: refusals.len() as i64,
            grants,
            refusals,
            origin,
        }
    }

    /// Returns what [`SETTLED`] says.
    pub fn settled() -> Self {
        let origin = ClaimOrigin { kind: "Controller".to_owned(), ..ClaimOrigin::default() };
        Self { origin, ..Self::default() }
    }

    /// Whether both say the same, whenever what was granted was granted.
    pub fn is_same(&self, other: &Self) -> bool {
        let grants = |spec: &Self| spec.grants.len();
        let is_same = |(own, other): (&ClaimGrant, &ClaimGrant)| own.key() == other.key();
        grants(self) == grants(other)
            && self.grants.iter().zip(&other.grants).all(is_same)
            && self.origin == other.origin
            && (&self.tenant, &self.address) == (&other.tenant, &other.address)
            && (&self.protocol, self.port, &self.port_pool) == (&other.protocol, other.port, &other.port_pool)
            && (&self.client_ranges, self.precedence) == (&other.client_ranges, other.precedence)
            && (&self.matches, &self.route, &self.backends) == (&other.matches, &other.route, &other.backends)
            && (&self.probe_server_name, &self.policy) == (&other.probe_server_name, &other.policy)
            && (&self.session_affinity, self.health_check_node_port)
                == (&other.session_affinity, other.health_check_node_port)
            && (self.granted, self.refused) == (other.granted, other.refused)
            && self.refusals == other.refusals
    }

    /// Whether agents serve connections alike by both: what they read of a Claim is the same, but for where they answer health checks.
    pub fn is_served_like(&self, other: &Self) -> bool {
        let served = |spec: &Self| Self {
            address: ClaimAddress::default(),
            matches: Vec::new(),
            refusals: Vec::new(),
            refused: 0,
            health_check_node_port: None,
            ..spec.clone()
        };
        served(self).is_same(&served(other))
    }

    /// Whether everything that was granted was granted before too.
    pub fn has_only_of(&self, before: &Self) -> bool {
        self.grants.iter().all(|grant| before.grants.iter().any(|old| old.key() == grant.key()))
    }

    /// Takes over since when the claim has had what it has, as the object says so far. An origin that was made again begins again.
    pub fn keep_since(&mut self, before: &Self) {
        if self.origin.uid != before.origin.uid {
            return;
        }
        for grant in &mut self.grants {
            if let Some(old) = before.grants.iter().find(|old| old.key() == grant.key()) {
                grant.since.clone_from(&old.since);
            }
        }
    }
}

/// Returns what connections must comply with.
fn policy(claim: &model::Claim) -> BTreeMap<String, serde_json::Value> {
    let ranges = claim.source_ranges.as_ref().map(|ranges| {
        let texts = ranges.ranges().iter().map(ToString::to_string);
        (SOURCE_RANGES.to_owned(), texts.collect::<Vec<_>>().into())
    });
    let traffic = match claim.traffic {
        TrafficPolicy::Cluster => None,
        TrafficPolicy::Local => Some((TRAFFIC.to_owned(), LOCAL.into())),
    };
    ranges.into_iter().chain(traffic).collect()
}

impl ClaimOrigin {
    /// Returns a claim's origin; `None`: the static file, whose claims have no object.
    pub fn of(claim: &model::Claim) -> Option<Self> {
        let Origin::Object { kind, name, created_secs } = &claim.origin else { return None };
        Some(Self {
            kind: kind.text().to_owned(),
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            uid: claim.asked.as_ref().map(|asked| asked.uid.to_string()).unwrap_or_default(),
            created: Timestamp::from_second(*created_secs).unwrap_or_default().to_string(),
            part: claim.part.to_string(),
        })
    }

    /// Returns the name of the claim's object: readable as far as it fits, and a hash of kind, namespace, name and part.
    pub fn object_name(&self) -> String {
        // Not to be forged: a part is chosen by tenants, and two claims with one name would overwrite each other.
        let mut hash = Sha256::new();
        for part in [&self.kind, &self.namespace, &self.name, &self.part] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hash: String =
            hash.finalize().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let mut prefix = format!("{}-{}-{}", self.kind, self.namespace, self.name).to_ascii_lowercase();
        // Names of objects may have dots, and are ASCII.
        prefix.retain(|character| character.is_ascii_alphanumeric() || character == '-');
        prefix.truncate(PREFIX_MAX);
        format!("{}-{hash}", prefix.trim_end_matches('-'))
    }
}

impl ClaimSpec {
    /// Returns what was granted, as far as it can be read.
    pub fn granted(&self) -> Vec<Grant> {
        let Ok(protocol) = protocol(&self.protocol) else { return Vec::new() };
        self.grants.iter().filter_map(|grant| grant.read(protocol).ok()).collect()
    }

    /// Returns the addresses that its origin has and does not answer on, since it asks for a protocol that is not served.
    pub fn kept_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let is_unserved = protocol(&self.protocol).is_ok_and(|asked| asked.served().is_none());
        self.refusals.iter().filter(move |_| is_unserved).filter_map(|refusal| refusal.address.parse().ok())
    }

    /// Returns the pool that it asked for when it was granted what it has. Addresses that are named may be of any pool.
    pub fn noted_pool(&self) -> Option<&str> {
        self.address.pool.as_deref().filter(|_| self.address.values.is_empty())
    }

    /// Returns what it asks for that this release does not know how to serve, by field, as written: to ignore it would serve more than
    /// was granted.
    pub(in super::super) fn unserved(&self) -> Vec<(&'static str, String)> {
        let mut unserved = Vec::new();
        unserved.extend(self.port_pool.iter().map(|pool| ("spec.portPool", pool.clone())));
        unserved.extend(self.client_ranges.first().map(|range| ("spec.clientRanges", range.clone())));
        unserved.extend(self.precedence.map(|number| ("spec.precedence", number.to_string())));
        for grant in &self.grants {
            let range = grant.client_ranges.first();
            unserved.extend(range.map(|range| ("spec.grants.clientRanges", range.clone())));
            unserved.extend(grant.precedence.map(|number| ("spec.grants.precedence", number.to_string())));
        }
        unserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(kind: &str, namespace: &str, name: &str, part: &str) -> ClaimOrigin {
        let text = str::to_owned;
        let (kind, namespace, name, part) = (text(kind), text(namespace), text(name), text(part));
        ClaimOrigin { kind, namespace, name, part, uid: String::new(), created: String::new() }
    }

    #[test]
    fn names_of_objects_are_labels_and_differ_where_the_origin_does() {
        let long = "x".repeat(253);
        let origins = [
            origin("TLSRoute", "a", "b", "0"),
            origin("TLSRoute", "a", "b", "1"),
            origin("TLSRoute", "a-b", "", "0"),
            origin("TLSRoute", "a", "", "b0"),
            origin("TCPRoute", "a", "b", "0"),
            origin("TLSRoute", "tenant.with-dots", &long, "0"),
            origin("TLSRoute", "a", &long[..40], "0"),
        ];
        let mut names: Vec<String> = origins.iter().map(ClaimOrigin::object_name).collect();
        for name in &names {
            assert!(name.len() <= 63 && name.starts_with(|first: char| first.is_ascii_lowercase()), "{name}");
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
        }
        // Changes only if the making of names changes: every Claim would be written again.
        assert_eq!(names[0], "tlsroute-a-b-43e7afe11a9d26e4772a62fd");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), origins.len());
    }

    #[test]
    fn what_was_granted_before_keeps_its_time() {
        let grant = |names: &str, since: &str| ClaimGrant {
            address: "192.0.2.1".to_owned(),
            port: 443,
            names: Some(names.to_owned()),
            since: since.to_owned(),
            ..ClaimGrant::default()
        };
        let before =
            ClaimSpec { grants: vec![grant("a", "t1"), grant("gone", "t1")], ..ClaimSpec::default() };
        let mut now =
            ClaimSpec { grants: vec![grant("a", "t2"), grant("new", "t2")], ..ClaimSpec::default() };
        now.keep_since(&before);
        assert_eq!(now.grants, [grant("a", "t1"), grant("new", "t2")]);
    }

    /// Another object of the same name had what this one asks for now.
    #[test]
    fn what_the_former_object_of_a_name_was_granted_keeps_no_time() {
        let grant = |since: &str| ClaimGrant { since: since.to_owned(), ..ClaimGrant::default() };
        let spec = |uid: &str, since: &str| ClaimSpec {
            origin: ClaimOrigin { uid: uid.to_owned(), ..ClaimOrigin::default() },
            grants: vec![grant(since)],
            ..ClaimSpec::default()
        };
        for (uid, since) in [("u1", "t1"), ("u2", "t2")] {
            let mut now = spec(uid, "t2");
            now.keep_since(&spec("u1", "t1"));
            assert_eq!(now.grants, [grant(since)], "{uid}");
        }
    }

    /// What differs is written again, also where another client has written it.
    #[test]
    fn claims_differ_in_each_thing_that_they_ask_for() {
        let all: [fn(&mut ClaimSpec); 10] = [
            |spec| spec.health_check_node_port = Some(30_000),
            |spec| {
                spec.backends =
                    vec![ClaimBackend { address: Some(ClaimEndpoint::default()), ..ClaimBackend::default() }]
            },
            |spec| spec.address.sharing_key = Some("k".to_owned()),
            |spec| spec.address.unreadable = vec!["x".to_owned()],
            |spec| spec.address.spare_families = vec!["IPv6".to_owned()],
            |spec| spec.port_pool = Some("p".to_owned()),
            |spec| spec.client_ranges = vec!["192.0.2.0/24".to_owned()],
            |spec| spec.precedence = Some(1),
            |spec| spec.grants[0].client_ranges = vec!["192.0.2.0/24".to_owned()],
            |spec| spec.grants[0].precedence = Some(1),
        ];
        let before = ClaimSpec {
            grants: vec![ClaimGrant::default()],
            backends: vec![ClaimBackend::default()],
            ..ClaimSpec::default()
        };
        assert!(before.is_same(&before.clone()));
        for (at, change) in all.iter().enumerate() {
            let mut now = before.clone();
            change(&mut now);
            assert!(!now.is_same(&before), "{at}");
        }
    }
}
