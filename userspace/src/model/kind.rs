//! The kinds of objects that ask for something: one row a kind.

use std::fmt;

/// API group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// API group of Ingresses.
pub const INGRESS_GROUP: &str = "networking.k8s.io";
/// API group of MetalLB's kinds.
pub const METALLB_GROUP: &str = "metallb.io";
/// API group of Services: core.
pub const CORE_GROUP: &str = "";

/// A kind of object that facts are read from. The order decides between objects of the same age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `gateway.networking.k8s.io`
    Gateway,
    /// `gateway.networking.k8s.io`
    GatewayClass,
    /// `networking.k8s.io`
    Ingress,
    /// `metallb.io`
    IpAddressPool,
    /// `gateway.networking.k8s.io`
    ListenerSet,
    /// core
    Service,
    /// `gateway.networking.k8s.io`
    TcpRoute,
    /// `gateway.networking.k8s.io`
    TlsRoute,
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

struct Row {
    kind: Kind,
    text: &'static str,
    group: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    programmed: Says,
}

/// In the order of [`Kind`].
#[rustfmt::skip]
const TABLE: [Row; 8] = {
    use Kind::*;
    use Says::{Addresses, Condition, Nowhere, ParentCondition};
    const fn row(
        kind: Kind, text: &'static str, group: &'static str, plural: &'static str, is_namespaced: bool, programmed: Says,
    ) -> Row {
        Row { kind, text, group, plural, is_namespaced, programmed }
    }
    [
        row(Gateway, "Gateway", GATEWAY_GROUP, "gateways", true, Condition("Programmed")),
        row(GatewayClass, "GatewayClass", GATEWAY_GROUP, "gatewayclasses", false, Nowhere),
        row(Ingress, "Ingress", INGRESS_GROUP, "ingresses", true, Addresses),
        row(IpAddressPool, "IPAddressPool", METALLB_GROUP, "ipaddresspools", true, Nowhere),
        row(ListenerSet, "ListenerSet", GATEWAY_GROUP, "listenersets", true, Condition("Programmed")),
        row(Service, "Service", CORE_GROUP, "services", true, Condition(OUR_PROGRAMMED)),
        row(TcpRoute, "TCPRoute", GATEWAY_GROUP, "tcproutes", true, ParentCondition(OUR_PROGRAMMED)),
        row(TlsRoute, "TLSRoute", GATEWAY_GROUP, "tlsroutes", true, ParentCondition(OUR_PROGRAMMED)),
    ]
};

impl Kind {
    /// All of them, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.kind)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// As in `kind:` of a manifest.
    pub fn text(self) -> &'static str {
        self.row().text
    }

    /// Its API group; empty: core.
    pub fn group(self) -> &'static str {
        self.row().group
    }

    /// What the API calls all objects of the kind.
    pub fn plural(self) -> &'static str {
        self.row().plural
    }

    /// Whether its objects have a namespace.
    pub fn is_namespaced(self) -> bool {
        self.row().is_namespaced
    }

    /// Where its status says that all nodes hold the object.
    pub fn programmed(self) -> Says {
        self.row().programmed
    }
}

impl std::str::FromStr for Kind {
    type Err = ();

    /// Reads what [`Kind::text`] returns.
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::all().find(|kind| kind.text() == text).ok_or(())
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
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, at);
            assert_eq!(row.text.parse(), Ok(row.kind));
            assert!(row.plural.starts_with(&row.text.to_ascii_lowercase()), "{}", row.plural);
        }
        assert!(Kind::all().is_sorted());
        assert_eq!("Pod".parse::<Kind>(), Err(()));
    }
}
