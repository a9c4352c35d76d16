//! Where the connections of a claim go.

use super::cluster::{Endpoint, EndpointState, ProbeSpec};
use super::facts::BackendSpec;
use super::name::ServerName;
use super::object::ObjectName;
use std::net::SocketAddr;
use std::sync::Arc;

/// The backends of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimBackends {
    /// None: what is granted is answered and refused.
    None,
    /// These addresses of the static file.
    Addresses(Arc<[BackendSpec]>),
    /// The endpoints of these Services, and these addresses, in order.
    Services {
        /// Each with its share.
        references: Arc<[ClaimBackend]>,
        /// The server name that a probe's TLS hello asks for.
        server_name: Option<ServerName>,
    },
}

/// A share of a claim's new connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimBackend {
    /// Share of new connections, among the shares of the claim.
    pub weight: u32,
    /// Where they go. `None`: the reference leads nowhere, and its share is refused.
    pub to: Option<ClaimTarget>,
}

/// What takes a share of new connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimTarget {
    /// The endpoints of a Service.
    Service(ServicePortRef),
    /// An address.
    Address(Box<AddressRef>),
}

/// A backend of no Service. All of a claim are one group: as of a Service's endpoints, those that fail their probe get no new
/// connections, unless that is more than may fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRef {
    /// Address and port, always ready.
    pub endpoint: Endpoint,
    /// How it is probed; `None`: it is not.
    pub probe: Option<ProbeSpec>,
}

impl ClaimBackend {
    /// A share that goes to a Service; `None`: nowhere.
    pub fn of_service(weight: u32, service: Option<ServicePortRef>) -> Self {
        Self { weight, to: service.map(ClaimTarget::Service) }
    }

    /// The Service that it goes to.
    pub fn service(&self) -> Option<&ServicePortRef> {
        match &self.to {
            Some(ClaimTarget::Service(service)) => Some(service),
            Some(ClaimTarget::Address(_)) | None => None,
        }
    }
}

impl AddressRef {
    /// A backend at this address and port.
    pub fn new(at: SocketAddr, probe: Option<ProbeSpec>) -> Self {
        let (state, zones) = (EndpointState::Ready, Arc::default());
        let endpoint = Endpoint {
            port_name: Arc::default(),
            address: at.ip(),
            port: at.port(),
            state,
            zones,
            node: None,
        };
        Self { endpoint, probe }
    }

    /// Its address and port.
    pub fn at(&self) -> SocketAddr {
        SocketAddr::new(self.endpoint.address, self.endpoint.port)
    }
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortRef {
    /// The Service.
    pub name: ObjectName,
    /// What its EndpointSlices call the port; empty where the Service has one port without name.
    pub port: Arc<str>,
    /// How its endpoints are probed; `None`: they are not.
    pub probe: Option<ProbeSpec>,
}
