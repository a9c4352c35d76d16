//! The kinds of objects that ask for something, and of those that we make for others to read: one row a kind. Those of the table of origins bring their rows themselves.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// API group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// API group of MetalLB's kinds.
pub const METALLB_GROUP: &str = "metallb.io";
/// Label of the objects of MetalLB's kinds that we make: no others are read, changed or deleted.
pub const REPORTER: &str = "vestibule.dev/reporter";
/// API group of Services: core.
pub const CORE_GROUP: &str = "";

/// A kind of object that facts are read from. The order, that of their names whatever their case, decides between objects of the same
/// age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `metallb.io`: what of MetalLB's configuration is not honoured. We make it.
    ConfigurationState,
    /// `gateway.networking.k8s.io`
    Gateway,
    /// `gateway.networking.k8s.io`
    GatewayClass,
    /// `metallb.io`
    IpAddressPool,
    /// `metallb.io`
    L2Advertisement,
    /// `gateway.networking.k8s.io`
    ListenerSet,
    /// core
    Service,
    /// `metallb.io`: which node announces a Service. We make it.
    ServiceL2Status,
    /// `gateway.networking.k8s.io`
    TcpRoute,
    /// `gateway.networking.k8s.io`
    TlsRoute,
    /// Of the table of origins ([`crate::origins`]).
    Origin(&'static KindRow),
}

/// Where an object's status says that all nodes hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Its condition of this type.
    Condition(&'static str),
    /// A condition of this type, of each parent of ours.
    ParentCondition(&'static str),
    /// It has no conditions: by its addresses.
    Addresses,
    /// It is in no map.
    Nowhere,
}

/// Our own condition, of kinds for which the Gateway API has none.
pub const OUR_PROGRAMMED: &str = "vestibule.dev/Programmed";

/// Our own condition. It is False if another object has an address and port, or a name.
pub const OWNED: &str = "vestibule.dev/Owned";

/// What the API calls all objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Its API group; empty: core.
    pub group: &'static str,
    /// Such as `services`.
    pub plural: &'static str,
}

/// What there is to know of a kind.
pub struct KindRow {
    /// As in `kind:` of a manifest, and in Claims: no two kinds have the same.
    pub text: &'static str,
    /// What the API calls its objects.
    pub resource: Resource,
    /// Whether its objects have a namespace.
    pub is_namespaced: bool,
    /// Where its status says that all nodes hold the object.
    pub programmed: Says,
}

impl PartialEq for KindRow {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for KindRow {}

impl Hash for KindRow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for KindRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// In the order of [`Kind`].
#[rustfmt::skip]
static TABLE: [(Kind, KindRow); 10] = {
    use Kind::*;
    use Says::{Condition, Nowhere, ParentCondition};
    const fn row(
        kind: Kind, text: &'static str, group: &'static str, plural: &'static str, is_namespaced: bool, programmed: Says,
    ) -> (Kind, KindRow) {
        (kind, KindRow { text, resource: Resource { group, plural }, is_namespaced, programmed })
    }
    [
        row(ConfigurationState, "ConfigurationState", METALLB_GROUP, "configurationstates", true, Nowhere),
        row(Gateway, "Gateway", GATEWAY_GROUP, "gateways", true, Condition("Programmed")),
        row(GatewayClass, "GatewayClass", GATEWAY_GROUP, "gatewayclasses", false, Nowhere),
        row(IpAddressPool, "IPAddressPool", METALLB_GROUP, "ipaddresspools", true, Nowhere),
        row(L2Advertisement, "L2Advertisement", METALLB_GROUP, "l2advertisements", true, Nowhere),
        row(ListenerSet, "ListenerSet", GATEWAY_GROUP, "listenersets", true, Condition("Programmed")),
        row(Service, "Service", CORE_GROUP, "services", true, Condition(OUR_PROGRAMMED)),
        row(ServiceL2Status, "ServiceL2Status", METALLB_GROUP, "servicel2statuses", true, Nowhere),
        row(TcpRoute, "TCPRoute", GATEWAY_GROUP, "tcproutes", true, ParentCondition(OUR_PROGRAMMED)),
        row(TlsRoute, "TLSRoute", GATEWAY_GROUP, "tlsroutes", true, ParentCondition(OUR_PROGRAMMED)),
    ]
};

impl Kind {
    /// All but those of the table of origins, in order.
    pub fn own() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(kind, _)| *kind)
    }

    /// Its index in the table, or the row that its origin brings.
    fn at(self) -> Result<usize, &'static KindRow> {
        Ok(match self {
            Self::ConfigurationState => 0,
            Self::Gateway => 1,
            Self::GatewayClass => 2,
            Self::IpAddressPool => 3,
            Self::L2Advertisement => 4,
            Self::ListenerSet => 5,
            Self::Service => 6,
            Self::ServiceL2Status => 7,
            Self::TcpRoute => 8,
            Self::TlsRoute => 9,
            Self::Origin(row) => return Err(row),
        })
    }

    fn row(self) -> &'static KindRow {
        self.at().map_or_else(|row| row, |at| &TABLE[at].1)
    }

    /// As in `kind:` of a manifest.
    pub fn text(self) -> &'static str {
        self.row().text
    }

    /// What the API calls its objects.
    pub fn resource(self) -> Resource {
        self.row().resource
    }

    /// Its API group; empty: core.
    pub fn group(self) -> &'static str {
        self.resource().group
    }

    /// What the API calls all objects of the kind.
    pub fn plural(self) -> &'static str {
        self.resource().plural
    }

    /// Whether its objects have a namespace.
    pub fn is_namespaced(self) -> bool {
        self.row().is_namespaced
    }

    /// Whether we make its objects, for others to read. They ask for nothing.
    pub fn is_report(self) -> bool {
        matches!(self, Self::ConfigurationState | Self::ServiceL2Status)
    }

    /// Where its status says that all nodes hold the object.
    pub fn programmed(self) -> Says {
        self.row().programmed
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Self) -> Ordering {
        if let (Ok(own), Ok(other)) = (self.at(), other.at()) {
            return own.cmp(&other);
        }
        let letters = |kind: &Self| kind.text().bytes().map(|byte| byte.to_ascii_lowercase());
        letters(self).cmp(letters(other))
    }
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_finds_its_own_row() {
        for (at, (kind, row)) in TABLE.iter().enumerate() {
            assert_eq!((kind.at(), kind.text()), (Ok(at), row.text));
            assert!(row.resource.plural.starts_with(&row.text.to_ascii_lowercase()), "{}", row.text);
        }
    }

    /// Claims of objects of the same age were granted in this order: it must not change with where a kind has its row.
    #[test]
    fn kinds_are_in_the_order_of_their_names_wherever_their_rows_are() {
        let lower = |kind: &Kind| kind.text().to_ascii_lowercase();
        assert!(Kind::own().is_sorted_by_key(|kind| lower(&kind)));
        let mut kinds: Vec<Kind> = crate::origins::kinds().collect();
        kinds.sort();
        assert!(kinds.is_sorted_by_key(lower), "{kinds:?}");
        kinds.dedup_by_key(|kind| lower(kind));
        assert_eq!(kinds.len(), crate::origins::kinds().count(), "two kinds have the same name");
    }
}
