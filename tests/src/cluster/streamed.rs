//! The kinds whose objects a watch can stream, as `group/resource`.

/// Returns the kinds whose initial objects `agent` or `controller` receives by a watch if the API server streams them, and by a list
/// otherwise. The right to list them is used only with API servers that do not stream.
pub fn streamed(account: &str) -> &'static [&'static str] {
    match account {
        "agent" => &[
            "/secrets",
            "discovery.k8s.io/endpointslices",
            "vestibule.dev/announcements",
            "vestibule.dev/claims",
        ],
        _ => &ORIGINS,
    }
}

const ORIGINS: [&str; 14] = [
    "/namespaces",
    "/services",
    "apiextensions.k8s.io/customresourcedefinitions",
    "coordination.k8s.io/leases",
    "discovery.k8s.io/endpointslices",
    "gateway.networking.k8s.io/gatewayclasses",
    "gateway.networking.k8s.io/gateways",
    "gateway.networking.k8s.io/listenersets",
    "gateway.networking.k8s.io/referencegrants",
    "gateway.networking.k8s.io/tcproutes",
    "gateway.networking.k8s.io/tlsroutes",
    "vestibule.dev/announcements",
    "vestibule.dev/claims",
    "vestibule.dev/nodestates",
];
