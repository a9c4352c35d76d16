//! What watches stream where the API server can: `group/resource`.

/// Kinds whose first objects come by a watch from an API server that streams them, and by a list from others. The right to
/// list them is used with those alone.
pub const STREAMED: [&str; 10] = [
    "/namespaces",
    "/services",
    "apiextensions.k8s.io/customresourcedefinitions",
    "discovery.k8s.io/endpointslices",
    "gateway.networking.k8s.io/gatewayclasses",
    "gateway.networking.k8s.io/gateways",
    "gateway.networking.k8s.io/listenersets",
    "gateway.networking.k8s.io/referencegrants",
    "gateway.networking.k8s.io/tcproutes",
    "gateway.networking.k8s.io/tlsroutes",
];
