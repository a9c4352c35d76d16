//! What is watched: one entry a kind of object.

use super::target::Target;

/// A kind of object that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// CustomResourceDefinitions: which of the others there are.
    Definitions,
    Namespaces,
    Services,
    EndpointSlices,
    GatewayClasses,
    Gateways,
    ListenerSets,
    TlsRoutes,
    TcpRoutes,
    ReferenceGrants,
    /// Only where the chart says that Ingresses are served.
    IngressClasses,
    /// The same.
    Ingresses,
    /// What was settled.
    Claims,
}

impl Source {
    /// What the controller reads: all that claims can be made of.
    pub(super) const ORIGINS: [Self; 10] = [
        Self::Definitions,
        Self::Namespaces,
        Self::Services,
        Self::EndpointSlices,
        Self::GatewayClasses,
        Self::Gateways,
        Self::ListenerSets,
        Self::TlsRoutes,
        Self::TcpRoutes,
        Self::ReferenceGrants,
    ];
    /// What the controller reads besides, where Ingresses are served.
    pub(super) const INGRESS: [Self; 2] = [Self::IngressClasses, Self::Ingresses];
    /// What an agent reads.
    pub(super) const SETTLED: [Self; 2] = [Self::EndpointSlices, Self::Claims];

    /// The plural by which the API knows it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Definitions => "customresourcedefinitions",
            Self::Namespaces => "namespaces",
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::GatewayClasses => "gatewayclasses",
            Self::Gateways => "gateways",
            Self::ListenerSets => "listenersets",
            Self::TlsRoutes => "tlsroutes",
            Self::TcpRoutes => "tcproutes",
            Self::ReferenceGrants => "referencegrants",
            Self::IngressClasses => "ingressclasses",
            Self::Ingresses => "ingresses",
            Self::Claims => "claims",
        }
    }

    /// Versions that we read of a kind that a CRD brings, the preferred first; empty: every cluster has the kind.
    pub(super) fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Definitions
            | Self::Namespaces
            | Self::Services
            | Self::EndpointSlices
            | Self::IngressClasses
            | Self::Ingresses
            | Self::Claims => &[],
            Self::GatewayClasses | Self::Gateways | Self::ReferenceGrants => &["v1", "v1beta1"],
            Self::ListenerSets => &["v1"],
            Self::TlsRoutes => &["v1", "v1alpha3", "v1alpha2"],
            Self::TcpRoutes => &["v1", "v1alpha2"],
        }
    }

    /// Name of the CRD that brings it.
    pub(super) fn definition(self) -> String {
        format!("{}.{GROUP}", self.text())
    }

    /// Where the API serves it.
    pub(super) fn path(self, version: &str) -> String {
        match self {
            Self::Definitions => "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            Self::Namespaces | Self::Services => format!("/api/v1/{}", self.text()),
            Self::EndpointSlices => "/apis/discovery.k8s.io/v1/endpointslices".to_owned(),
            Self::IngressClasses | Self::Ingresses => format!("/apis/networking.k8s.io/v1/{}", self.text()),
            Self::Claims => "/apis/vestibule.dev/v1alpha1/claims".to_owned(),
            Self::GatewayClasses
            | Self::Gateways
            | Self::ListenerSets
            | Self::TlsRoutes
            | Self::TcpRoutes
            | Self::ReferenceGrants => format!("/apis/{GROUP}/{version}/{}", self.text()),
        }
    }

    /// What is watched of it.
    pub(super) fn target(self, version: &str) -> Target {
        let labels = match self {
            // A slice without it belongs to no Service.
            Self::EndpointSlices => Some("kubernetes.io/service-name".to_owned()),
            _ => None,
        };
        let is_metadata_only = matches!(self, Self::Definitions | Self::Namespaces);
        Target { path: self.path(version), labels, fields: None, is_metadata_only }
    }
}

/// API group of the Gateway API.
pub(super) const GROUP: &str = "gateway.networking.k8s.io";
