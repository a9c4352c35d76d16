//! What is read of the cluster: one row a kind of object, here or in the table of origins. Watches, discovery, what waits for a kind that
//! cannot be listed, and the rights that the chart grants follow from it.

use super::api::announcement;
use super::served::{Extent, Served};
use super::target::Target;
use crate::model::cluster::Policy;
use crate::model::kind::{CORE_GROUP, GATEWAY_GROUP, METALLB_GROUP, REPORTER};
use crate::model::{Kind, Resource};
use crate::origins::{self, WatchRow};

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
    /// What an origin of the table reads.
    Origin(&'static WatchRow),
    /// IPAddressPools of MetalLB.
    Pools,
    /// L2Advertisements of MetalLB.
    Advertisements,
    /// ServiceL2Statuses, of those that we make.
    L2Statuses,
    /// The same of ConfigurationStates.
    Configurations,
    Nodes,
    /// What was settled.
    Claims,
    /// What the cluster announces, and who.
    Announcements,
}

/// Who reads a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The controller, of whose origins claims are made.
    Controller,
    /// The controller, where the chart says that the origin is served.
    ControllerOfOrigin,
    /// The controller, where the chart says whose pools are read.
    ControllerOfPools,
    /// The controller, where the chart says that anything may be announced.
    ControllerOfAnnouncing,
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

#[derive(Clone, Copy)]
struct Row {
    source: Source,
    resource: Resource,
    served: Served,
    extent: Extent,
    reader: Reader,
    waits: Waits,
}

/// All but those of origins. How an object is folded is in `watches.rs`, where it is kept in `tables.rs`.
#[rustfmt::skip]
const TABLE: [Row; 17] = {
    use Extent::{Labelled, Metadata, Named, Whole};
    use Reader::{Agents, Controller, ControllerOfAnnouncing, ControllerOfPools};
    use Served::{Always, ByDefinition};
    use Source::*;
    const fn row(
        source: Source, group: &'static str, plural: &'static str, served: Served, extent: Extent, reader: Reader, waits: Waits,
    ) -> Row {
        Row { source, resource: Resource { group, plural }, served, extent, reader, waits }
    }
    [
        // The kinds that they bring are not listed then, and have rows of their own.
        row(Definitions, "apiextensions.k8s.io", "customresourcedefinitions", Always("v1"), Metadata, Controller, Waits::Nothing),
        // Their labels say whose each Claim is.
        row(Namespaces, CORE_GROUP, "namespaces", Always("v1"), Metadata, Controller, Waits::All),
        // All routes and objects of origins lead to them, and they have addresses.
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
        // An object would be given an address of another pool.
        row(Pools, METALLB_GROUP, "ipaddresspools", ByDefinition(&["v1beta1"]), Whole, ControllerOfPools, Waits::Pools),
        // While these cannot be listed, what is announced stays as it is.
        row(Advertisements, METALLB_GROUP, "l2advertisements", ByDefinition(&["v1beta1"]), Whole, ControllerOfPools, Waits::Nothing),
        // Those of MetalLB's own are not ours to change.
        row(L2Statuses, METALLB_GROUP, "servicel2statuses", ByDefinition(&["v1beta1"]), Labelled(REPORTER), ControllerOfPools,
            Waits::Nothing),
        row(Configurations, METALLB_GROUP, "configurationstates", ByDefinition(&["v1beta1"]), Labelled(REPORTER), ControllerOfPools,
            Waits::Nothing),
        row(Nodes, CORE_GROUP, "nodes", Always("v1"), Whole, ControllerOfAnnouncing, Waits::Nothing),
        row(Claims, "vestibule.dev", "claims", Always("v1alpha1"), Whole, Agents, Waits::Nothing),
        row(Announcements, "vestibule.dev", "announcements", Always("v1alpha1"), Named(announcement::NAME), Agents, Waits::Nothing),
    ]
};

impl Source {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of_origins = origins::all().flat_map(|origin| origin.watched());
        TABLE.iter().map(|row| row.source).chain(of_origins.map(Self::Origin))
    }

    fn row(self) -> Row {
        let own = TABLE.iter().find(|row| row.source == self);
        match (self, own) {
            (Self::Origin(watched), _) => Row {
                source: self,
                resource: watched.resource,
                served: watched.served,
                extent: watched.extent,
                reader: Reader::ControllerOfOrigin,
                waits: Waits::ObjectsOf(watched.of),
            },
            (_, Some(row)) => *row,
            (_, None) => unreachable!("each source has its row"),
        }
    }

    /// The source of objects of a kind.
    pub(super) fn of(kind: Kind) -> Option<Self> {
        Self::all().find(|source| source.kind() == Some(kind))
    }

    /// The kind of its objects, of those that ask for something.
    pub(super) fn kind(self) -> Option<Kind> {
        match self {
            Self::Origin(watched) => watched.asks().then_some(watched.of),
            _ => {
                let resource = self.row().resource;
                Kind::own().find(|kind| kind.resource() == resource)
            }
        }
    }

    /// What agents read.
    pub(super) fn of_agents() -> impl Iterator<Item = Self> {
        Self::all().filter(|source| matches!(source.row().reader, Reader::Agents | Reader::All))
    }

    /// What the controller reads.
    pub(super) fn of_controller(policy: &Policy) -> impl Iterator<Item = Self> {
        let (reads_pools, announces) = (policy.pools.is_on(), policy.announces());
        let own = TABLE.iter().filter(move |row| match row.reader {
            Reader::Controller | Reader::All => true,
            Reader::ControllerOfPools => reads_pools,
            Reader::ControllerOfAnnouncing => announces,
            Reader::ControllerOfOrigin | Reader::Agents => false,
        });
        let origins = origins::all().filter(|origin| origin.is_on(policy));
        let of_origins = origins.flat_map(|origin| origin.watched()).map(Self::Origin);
        own.map(|row| row.source).chain(of_origins)
    }

    /// Whether nothing is known to be all before it is listed: what is announced holds up nothing else, and waits only for an answer.
    pub(crate) fn is_needed(self) -> bool {
        self != Self::Announcements
    }

    /// The plural by which the API knows it.
    pub(crate) fn text(self) -> &'static str {
        self.row().resource.plural
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
        let Resource { group, plural } = self.row().resource;
        format!("{plural}.{group}")
    }

    /// Where the API serves it, in this version; one that every cluster has, in its own.
    pub(super) fn path(self, version: &str) -> String {
        let Resource { group, plural } = self.row().resource;
        let version = self.fixed_version().unwrap_or(version);
        match group {
            CORE_GROUP => format!("/api/{version}/{plural}"),
            group => format!("/apis/{group}/{version}/{plural}"),
        }
    }

    /// What is watched of it.
    pub(super) fn target(self, version: &str) -> Target {
        let extent = self.row().extent;
        let (labels, fields) = match extent {
            Extent::Labelled(label) => (Some(label.to_owned()), None),
            Extent::Named(name) => (None, Some(format!("metadata.name={name}"))),
            Extent::Whole | Extent::Metadata => (None, None),
        };
        Target { path: self.path(version), labels, fields, is_metadata_only: extent == Extent::Metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    #[test]
    fn each_source_finds_its_own_row_and_each_kind_its_source() {
        assert!(Source::all().all(|source| source.row().source == source));
        assert!(TABLE.is_sorted_by_key(|row| row.source));
        for kind in origins::kinds() {
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
            let name = |source: &Source| match source.row().extent {
                Extent::Named(name) => Some(name),
                _ => None,
            };
            let (named, all): (Vec<Source>, Vec<Source>) =
                sources.into_iter().partition(|source| name(source).is_some());
            let resources =
                all.into_iter().map(|source| (source.row().resource.group, source.text().to_owned()));
            let mut reads = rules(resources, &["list", "watch"]);
            // List and watch with a field selector.
            reads.extend(named.iter().map(|source| {
                let Resource { group, plural } = source.row().resource;
                let verbs = ["list", "watch"];
                json!({"apiGroups": [group], "resources": [plural], "resourceNames": [name(source)], "verbs": verbs})
            }));
            reads
        };
        let of = |reader: Reader| Source::all().filter(move |source| source.row().reader == reader).collect();
        let writes = |reader: Reader| {
            let is_written = |kind: &Kind| *kind != Kind::L2Advertisement && !kind.is_report();
            let is_read = |kind: &Kind| Source::of(*kind).is_some_and(|source| source.row().reader == reader);
            let kinds = Kind::own().filter(is_read).filter(is_written);
            rules(kinds.map(|kind| (kind.group(), format!("{}/status", kind.plural()))), &["patch"])
        };
        let reports: Vec<Kind> = Kind::own().filter(|kind| kind.is_report()).collect();
        let named = |suffix: &str| {
            let named = reports.iter().map(|kind| (kind.group(), format!("{}{suffix}", kind.plural())));
            named.collect::<Vec<_>>().into_iter()
        };
        let mut made = rules(named(""), &["create", "delete"]);
        made.extend(rules(named("/status"), &["patch"]));
        let mut rights = json!({
            "agent": {"reads": reads(Source::of_agents().collect())},
            "controller": {
                "reads": reads(Source::of_controller(&Policy::default()).collect()),
                "writes": writes(Reader::Controller),
            },
            "announcing": {"reads": reads(of(Reader::ControllerOfAnnouncing))},
            "pools": {
                "reads": reads(of(Reader::ControllerOfPools)),
                "writes": writes(Reader::ControllerOfPools),
            },
            "reports": {"writes": made},
        });
        for origin in origins::TABLE {
            let kind = origin.kind();
            rights[origin.section()] = json!({
                "reads": reads(origin.watched().iter().map(Source::Origin).collect()),
                "writes": rules([(kind.group(), format!("{}/status", kind.plural()))].into_iter(), &["patch"]),
            });
        }
        let path = format!("{}/../deploy/charts/vestibule/files/rights.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = serde_saphyr::to_string(&rights).unwrap();
        if std::env::var_os("VESTIBULE_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(file, text, "run this test with VESTIBULE_BLESS=1");
    }
}
