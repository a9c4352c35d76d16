//! What is read of the cluster: one row a kind of object. Watches, discovery, what waits for a kind that cannot be listed, and the rights
//! that the chart grants follow from it.

use super::target::Target;
use crate::model::Kind;
use crate::model::cluster::Policy;
use crate::model::kind::{CORE_GROUP, GATEWAY_GROUP, INGRESS_GROUP, METALLB_GROUP};

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
    IngressClasses,
    Ingresses,
    /// IPAddressPools of MetalLB.
    Pools,
    /// What was settled.
    Claims,
}

/// Who reads a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The controller, of whose origins claims are made.
    Controller,
    /// The controller, where the chart says that Ingresses are served.
    ControllerOfIngresses,
    /// The controller, where the chart says whose pools are read.
    ControllerOfPools,
    /// Agents.
    Agents,
    /// Both.
    All,
}

/// What waits while a kind cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Everything: no Claim can be made without.
    All,
    /// Status, Events and Claims of Gateways, and of what attaches to them; addresses that nobody has by a Claim yet.
    Gateways,
    /// Addresses that nobody has by a Claim yet, but those of the chart's ranges that are asked for by value.
    Pools,
    /// Status, Events and Claims of objects of this kind.
    ObjectsOf(Kind),
    /// Their Claims; of Gateways, the number of routes on listeners of their protocol.
    Routes(Kind),
    /// Their Claims; of Gateways, their number; status, Events and Claims of routes to them.
    Parents(Kind),
    /// Status, Events and Claims of routes to other namespaces.
    References,
    /// Nothing.
    Nothing,
}

/// How a kind comes into the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// Every cluster has it, in this version.
    Always(&'static str),
    /// A CRD of others brings it; versions that we read, the preferred first.
    ByDefinition(&'static [&'static str]),
}

/// What is watched of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Whole,
    Metadata,
    /// Objects with this label alone.
    Labelled(&'static str),
}

struct Row {
    source: Source,
    group: &'static str,
    plural: &'static str,
    served: Served,
    extent: Extent,
    reader: Reader,
    waits: Waits,
}

/// In the order of [`Source`]. How an object is folded is in `watches.rs`, where it is kept in `tables.rs`.
#[rustfmt::skip]
const TABLE: [Row; 14] = {
    use Extent::{Labelled, Metadata, Whole};
    use Reader::{Agents, Controller, ControllerOfIngresses, ControllerOfPools};
    use Served::{Always, ByDefinition};
    use Source::*;
    const fn row(
        source: Source, group: &'static str, plural: &'static str, served: Served, extent: Extent, reader: Reader, waits: Waits,
    ) -> Row {
        Row { source, group, plural, served, extent, reader, waits }
    }
    [
        // The kinds that they bring are not listed then, and have rows of their own.
        row(Definitions, "apiextensions.k8s.io", "customresourcedefinitions", Always("v1"), Metadata, Controller, Waits::Nothing),
        // Their labels say whose each Claim is.
        row(Namespaces, CORE_GROUP, "namespaces", Always("v1"), Metadata, Controller, Waits::All),
        // All routes and Ingresses lead to them, and they have addresses.
        row(Services, CORE_GROUP, "services", Always("v1"), Whole, Controller, Waits::All),
        // A slice without the label belongs to no Service. Agents read them themselves.
        row(EndpointSlices, "discovery.k8s.io", "endpointslices", Always("v1"), Labelled("kubernetes.io/service-name"), Reader::All,
            Waits::Nothing),
        row(GatewayClasses, GATEWAY_GROUP, "gatewayclasses", ByDefinition(&["v1", "v1beta1"]), Whole, Controller, Waits::Gateways),
        row(Gateways, GATEWAY_GROUP, "gateways", ByDefinition(&["v1", "v1beta1"]), Whole, Controller, Waits::Gateways),
        row(ListenerSets, GATEWAY_GROUP, "listenersets", ByDefinition(&["v1"]), Whole, Controller, Waits::Parents(Kind::ListenerSet)),
        row(TlsRoutes, GATEWAY_GROUP, "tlsroutes", ByDefinition(&["v1", "v1alpha3", "v1alpha2"]), Whole, Controller,
            Waits::Routes(Kind::TlsRoute)),
        row(TcpRoutes, GATEWAY_GROUP, "tcproutes", ByDefinition(&["v1", "v1alpha2"]), Whole, Controller,
            Waits::Routes(Kind::TcpRoute)),
        row(ReferenceGrants, GATEWAY_GROUP, "referencegrants", ByDefinition(&["v1", "v1beta1"]), Whole, Controller,
            Waits::References),
        // Without the classes it is not known which Ingresses are ours.
        row(IngressClasses, INGRESS_GROUP, "ingressclasses", Always("v1"), Whole, ControllerOfIngresses,
            Waits::ObjectsOf(Kind::Ingress)),
        row(Ingresses, INGRESS_GROUP, "ingresses", Always("v1"), Whole, ControllerOfIngresses, Waits::ObjectsOf(Kind::Ingress)),
        // An object would be given an address of another pool.
        row(Pools, METALLB_GROUP, "ipaddresspools", ByDefinition(&["v1beta1"]), Whole, ControllerOfPools, Waits::Pools),
        row(Claims, "vestibule.dev", "claims", Always("v1alpha1"), Whole, Agents, Waits::Nothing),
    ]
};

impl Source {
    /// All of them, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.source)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The source of objects of a kind.
    pub(super) fn of(kind: Kind) -> Option<Self> {
        Self::all().find(|source| source.kind() == Some(kind))
    }

    /// The kind of its objects, of those that ask for something.
    pub(super) fn kind(self) -> Option<Kind> {
        let row = self.row();
        Kind::all().find(|kind| (kind.group(), kind.plural()) == (row.group, row.plural))
    }

    /// What agents read.
    pub(super) fn of_agents() -> impl Iterator<Item = Self> {
        Self::all().filter(|source| matches!(source.row().reader, Reader::Agents | Reader::All))
    }

    /// What the controller reads.
    pub(super) fn of_controller(policy: &Policy) -> impl Iterator<Item = Self> {
        let (reads_ingresses, reads_pools) = (policy.ingress.is_on(), policy.pools.is_on());
        Self::all().filter(move |source| match source.row().reader {
            Reader::Controller | Reader::All => true,
            Reader::ControllerOfIngresses => reads_ingresses,
            Reader::ControllerOfPools => reads_pools,
            Reader::Agents => false,
        })
    }

    /// The plural by which the API knows it.
    pub(crate) fn text(self) -> &'static str {
        self.row().plural
    }

    /// What waits while it cannot be listed.
    pub(crate) fn waits(self) -> Waits {
        self.row().waits
    }

    /// Versions that we read of a kind that a CRD brings, the preferred first; empty: every cluster has the kind.
    pub(super) fn versions(self) -> &'static [&'static str] {
        match self.row().served {
            Served::Always(_) => &[],
            Served::ByDefinition(versions) => versions,
        }
    }

    /// The version of a kind that every cluster has; `None`: a CRD says it.
    pub(super) fn fixed_version(self) -> Option<&'static str> {
        match self.row().served {
            Served::Always(version) => Some(version),
            Served::ByDefinition(_) => None,
        }
    }

    /// Name of the CRD that brings it.
    pub(super) fn definition(self) -> String {
        let Row { group, plural, .. } = self.row();
        format!("{plural}.{group}")
    }

    /// Where the API serves it, in this version; one that every cluster has, in its own.
    pub(super) fn path(self, version: &str) -> String {
        let Row { group, plural, .. } = self.row();
        let version = self.fixed_version().unwrap_or(version);
        match *group {
            CORE_GROUP => format!("/api/{version}/{plural}"),
            group => format!("/apis/{group}/{version}/{plural}"),
        }
    }

    /// What is watched of it.
    pub(super) fn target(self, version: &str) -> Target {
        let extent = self.row().extent;
        let labels = match extent {
            Extent::Labelled(label) => Some(label.to_owned()),
            Extent::Whole | Extent::Metadata => None,
        };
        Target {
            path: self.path(version),
            labels,
            fields: None,
            is_metadata_only: extent == Extent::Metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    #[test]
    fn each_source_finds_its_own_row_and_each_kind_its_source() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.source as usize, at);
        }
        for kind in Kind::all() {
            assert_eq!(Source::of(kind).and_then(Source::kind), Some(kind));
        }
        assert_eq!(Source::Gateways.definition(), "gateways.gateway.networking.k8s.io");
        assert_eq!(Source::Services.path("v9"), "/api/v1/services");
        assert_eq!(Source::TlsRoutes.path("v1alpha3"), "/apis/gateway.networking.k8s.io/v1alpha3/tlsroutes");
    }

    /// Rules of RBAC, one for each group.
    fn rules(of: impl Iterator<Item = (&'static str, String)>, verbs: &[&str]) -> Vec<Value> {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (group, resource) in of {
            groups.entry(group).or_default().push(resource);
        }
        let rule = |(group, resources)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        groups.into_iter().map(rule).collect()
    }

    /// With `VESTIBULE_BLESS=1`, writes the file, of which the chart's ClusterRoles are rendered.
    #[test]
    fn the_rights_in_the_chart_are_up_to_date() {
        let reads = |sources: Vec<Source>| {
            let resources = sources.into_iter().map(|source| (source.row().group, source.text().to_owned()));
            rules(resources, &["list", "watch"])
        };
        let of = |reader: Reader| Source::all().filter(move |source| source.row().reader == reader).collect();
        let writes = |reader: Reader| {
            let is_read = |kind: &Kind| Source::of(*kind).is_some_and(|source| source.row().reader == reader);
            let kinds = Kind::all().filter(is_read);
            rules(kinds.map(|kind| (kind.group(), format!("{}/status", kind.plural()))), &["patch"])
        };
        let rights = json!({
            "agent": {"reads": reads(Source::of_agents().collect())},
            "controller": {
                "reads": reads(Source::of_controller(&Policy::default()).collect()),
                "writes": writes(Reader::Controller),
            },
            "ingress": {
                "reads": reads(of(Reader::ControllerOfIngresses)),
                "writes": writes(Reader::ControllerOfIngresses),
            },
            "pools": {
                "reads": reads(of(Reader::ControllerOfPools)),
                "writes": writes(Reader::ControllerOfPools),
            },
        });
        let path = format!("{}/../deploy/charts/vestibule/files/rights.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = serde_saphyr::to_string(&rights).unwrap();
        if std::env::var_os("VESTIBULE_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(file, text, "run this test with VESTIBULE_BLESS=1");
    }
}
