//! What the maps hold of an object, as a number that every node computes alike: FNV-1a (draft-eastlake-fnv), mixed. Parts
//! are added up, so that their order does not matter.

use crate::model::cluster::{BackendRef, ClusterRoute};
use common::decide::maglev::mix;
use std::net::SocketAddr;

/// A digest under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(u64);

impl Part {
    /// Begins a part; `what` keeps parts of different sorts apart.
    pub(super) fn new(what: &str) -> Self {
        Self(0xcbf2_9ce4_8422_2325).text(what)
    }

    /// With a text. Its end counts: `ab` + `c` is not `a` + `bc`.
    #[must_use]
    pub(super) fn text(self, text: &str) -> Self {
        text.bytes().fold(self, Self::byte).byte(0xff)
    }

    /// With a number.
    #[must_use]
    pub(super) fn number(self, number: u64) -> Self {
        number.to_be_bytes().into_iter().fold(self, Self::byte)
    }

    /// With an address and port.
    #[must_use]
    pub(super) fn at(self, at: SocketAddr) -> Self {
        let this = match at {
            SocketAddr::V4(at) => at.ip().octets().into_iter().fold(self.byte(4), Self::byte),
            SocketAddr::V6(at) => at.ip().octets().into_iter().fold(self.byte(6), Self::byte),
        };
        this.number(u64::from(at.port()))
    }

    fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The part as a number, to be added to others with wrapping.
    pub(super) fn done(self) -> u64 {
        mix(self.0)
    }
}

/// A route's name and backend references as written: what decides about its backends besides Services and endpoints.
pub(super) fn route(label: &str, route: &ClusterRoute) -> u64 {
    let reference = |part: Part, backend: &BackendRef| {
        let namespace = backend.namespace.as_ref().unwrap_or(&route.meta.name.namespace);
        part.text(&backend.group)
            .text(&backend.kind)
            .text(namespace)
            .text(&backend.name)
            .number(u64::from(backend.port.unwrap_or_default()))
            .number(u64::from(backend.weight))
    };
    let backends = route.rules.first().map_or(&[][..], Vec::as_slice);
    backends.iter().fold(Part::new("route").text(label), reference).done()
}
