//! Claims: what an origin asks of the load balancer at one attachment, and what it was granted.

use super::cluster::{Endpoint, FamilyWish};
use super::facts::Protocol;
use super::kind::Kind;
use super::name::Pattern;
use super::object::{ObjectName, ObjectRef};
use super::possession::Possession;
use super::problem::Problem;
use super::service::{Affinity, TrafficPolicy};
use super::source_ranges::SourceRanges;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

pub use super::claim_backend::{AddressRef, ClaimBackend, ClaimBackends, ClaimTarget, ServicePortRef};

/// Who claims: of two, the lesser one comes first. The static file, then the oldest object, then the first by kind,
/// namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A listener or route of the static file.
    File {
        /// `listener` or `route`.
        what: &'static str,
        /// Its name.
        name: Arc<str>,
    },
    /// An object.
    Object {
        /// `metadata.creationTimestamp`, seconds since 1970.
        created_secs: i64,
        /// Its kind.
        kind: Kind,
        /// Its namespace and name.
        name: ObjectName,
    },
}

impl Origin {
    /// The object; `None` for the static file.
    pub fn object(&self) -> Option<ObjectRef> {
        match self {
            Self::File { .. } => None,
            Self::Object { kind, name, .. } => Some(ObjectRef { kind: *kind, name: name.clone() }),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { what, name } => write!(f, "{what} {name} of the static file"),
            Self::Object { kind, name, .. } => write!(f, "{kind} {name}"),
        }
    }
}

/// What a node serves of a cluster: the Claims, and the endpoints that they lead to.
#[derive(Clone, Copy, Debug)]
pub struct ClaimSet<'a> {
    /// By name of the object that says so.
    pub claims: &'a BTreeMap<Arc<str>, StoredClaim>,
    /// Endpoints by Service, of all its slices together.
    pub endpoints: &'a BTreeMap<ObjectName, Arc<[Endpoint]>>,
    /// Percentage of a Service's backends that may be taken out of new picks; when more fail, none is.
    pub panic_percent: u8,
    /// What could not be read.
    pub problems: &'a [Problem],
}

/// A claim as an object says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredClaim {
    /// `metadata.resourceVersion`, which only grows: of two that have the same, the one that was written later is right.
    pub version: u64,
    /// What it says.
    pub claim: Arc<Claim>,
}

/// One set of backends at one attachment: a route's rule at a listener, a port of a Service, a route of the static file
/// at all its listeners; or a listener by itself, which answers where nobody else does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who claims.
    pub origin: Origin,
    /// Which of the origin's claims it is: unique among them, and the same as long as the origin says the same.
    pub part: Arc<str>,
    /// Whose it is: the origin's namespace or what its label says, and the origin's own label. `None`: the static file's.
    pub tenant: Option<Arc<str>>,
    /// The port that it asks for.
    pub port: u16,
    /// What is to be spoken there.
    pub protocol: AskedProtocol,
    /// What maps and metrics call the route that it leads to: claims of one origin that lead to the same backends share it.
    /// `None`: a listener of the static file, which leads nowhere itself.
    pub route: Option<Arc<str>>,
    /// What was granted.
    pub grants: Vec<Grant>,
    /// What else it asks for. `None`: nothing, or it is not known, as on nodes: they serve what was granted, and keep each Claim.
    pub asked: Option<Box<Wishes>>,
    /// Where connections go.
    pub backends: ClaimBackends,
    /// Whose connections are admitted; `None`: anybody's.
    pub source_ranges: Option<SourceRanges>,
    /// Which connections reach the same backend.
    pub affinity: Affinity,
    /// Which backends a node leads to.
    pub traffic: TrafficPolicy,
    /// The port at which nodes say whether they lead to any, of a Service that asks for one.
    pub health_port: Option<NonZeroU16>,
}

/// What a claim asks for, besides port and protocol, and what of it was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// `metadata.uid` of the object that asks; empty: it has none.
    pub uid: Arc<str>,
    /// The addresses.
    pub address: AddressWish,
    /// The names, as written, in order; empty: all.
    pub matches: Vec<Pattern>,
    /// What it asked for and has not.
    pub refusals: Vec<Refusal>,
}

/// What a claim asks to be spoken at its port. Not all of it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedProtocol {
    /// As [`Protocol::Tls`].
    Tls,
    /// As [`Protocol::Tcp`].
    Tcp,
    /// Not served.
    Udp,
    /// Not served.
    Sctp,
}

impl AskedProtocol {
    const ALL: [Self; 4] = [Self::Tls, Self::Tcp, Self::Udp, Self::Sctp];

    /// As Services, Gateways and Claims write it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Reads what [`AskedProtocol::text`] returns.
    pub fn of_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|asked| asked.text() == text)
    }

    /// What may be granted of it; `None`: nothing, for it is not served.
    pub fn served(self) -> Option<Protocol> {
        match self {
            Self::Tls => Some(Protocol::Tls),
            Self::Tcp => Some(Protocol::Tcp),
            Self::Udp | Self::Sctp => None,
        }
    }
}

impl From<Protocol> for AskedProtocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tls => Self::Tls,
            Protocol::Tcp => Self::Tcp,
        }
    }
}

/// Which addresses a claim asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressWish {
    /// Of its own.
    Own(OwnAddresses),
    /// Those of this Gateway.
    OfGateway(ObjectName),
}

impl Default for AddressWish {
    fn default() -> Self {
        Self::Own(OwnAddresses::default())
    }
}

/// Addresses that a claim asks for, and shares with nobody but by a key. It asks for any if it names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses {
    /// These.
    pub values: Vec<IpAddr>,
    /// What it names besides and is no address, as written.
    pub unreadable: Vec<Arc<str>>,
    /// Any one of each of these families; empty: of each that there is.
    pub families: Vec<FamilyWish>,
    /// Of this pool; `None`: of any.
    pub pool: Option<Arc<str>>,
    /// Services of its namespace that have the same key may have the same addresses.
    pub sharing_key: Option<Arc<str>>,
}

/// Something a claim has. A node keeps some for each of its Claims, and a socket address would take half of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The protocol that is spoken there.
    pub protocol: Protocol,
    /// What of it.
    pub what: Granted,
}

impl Grant {
    /// This of an address and port.
    pub fn new(at: SocketAddr, protocol: Protocol, what: Granted) -> Self {
        Self { address: at.ip(), port: at.port(), protocol, what }
    }

    /// Address and port.
    pub fn at(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Notes that an object of this kind and name has it.
    pub fn note(&self, kind: Kind, name: &ObjectName, possession: &mut Possession) {
        let namespace = &name.namespace;
        // Others answer at a Gateway's addresses.
        note_address(kind, name, self.address, possession);
        match &self.what {
            // A listener's names lead nowhere.
            Granted::Names(_) if matches!(kind, Kind::Gateway | Kind::ListenerSet) => {}
            Granted::Binding => possession.add_binding(namespace, self.at(), self.protocol),
            Granted::Rest => possession.add_names(namespace, self.at(), None),
            Granted::Names(pattern) => possession.add_names(namespace, self.at(), Some(pattern.clone())),
        }
    }
}

/// Returns what claims of objects have.
pub fn possession<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Possession {
    let mut possession = Possession::default();
    for claim in claims {
        if let Some(object) = claim.origin.object() {
            let ObjectRef { kind, name } = &object;
            claim.grants.iter().for_each(|grant| grant.note(*kind, name, &mut possession));
            claim.kept_addresses().for_each(|address| note_address(*kind, name, address, &mut possession));
            // Addresses that are named may be of any pool.
            let address = claim.asked.as_ref().map(|asked| &asked.address);
            if let Some(AddressWish::Own(OwnAddresses { values, pool: Some(pool), .. })) = address
                && values.is_empty()
            {
                possession.note_pool(object, pool);
            }
        }
    }
    possession
}

impl Claim {
    /// Returns what it asked for and has not, as far as that is known.
    pub fn refusals(&self) -> &[Refusal] {
        self.asked.as_ref().map_or(&[], |asked| &asked.refusals)
    }

    /// Returns the addresses that its origin has and does not answer on, since it asks for a protocol that is not served: nobody
    /// else gets them.
    fn kept_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let refusals = self.refusals().iter().filter(|_| self.protocol.served().is_none());
        refusals.filter_map(|refusal| refusal.address)
    }
}

/// Notes that an object has an address. Others than Gateways and Services have none of their own.
pub fn note_address(kind: Kind, name: &ObjectName, address: IpAddr, possession: &mut Possession) {
    if matches!(kind, Kind::Gateway | Kind::Service) {
        possession.add_address(&ObjectRef { kind, name: name.clone() }, address);
    }
}

/// Something that a claim asked for and has not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The address; `None`: it has none.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// The names as written; `None`: the address and port as a whole.
    pub names: Option<Pattern>,
    /// Why it has not.
    pub why: Why,
}

impl Refusal {
    /// A refusal of an address and port as a whole.
    pub fn whole(at: SocketAddr, why: Why) -> Self {
        Self { address: Some(at.ip()), port: at.port(), names: None, why }
    }
}

/// Why a claim has not what it asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Another claimant has it.
    Lost(Origin),
    /// Nobody may have it.
    Reserved,
    /// The maps have no room for it. What was granted of it stays granted.
    NoRoom,
    /// It cannot be had, or is not served: for people.
    Refused(Arc<str>),
}

/// What of an address and port a claim has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Granted {
    /// To answer there, as others may on TLS.
    Binding,
    /// Every connection that no pattern takes; on TCP every connection.
    Rest,
    /// These names.
    Names(Pattern),
}
