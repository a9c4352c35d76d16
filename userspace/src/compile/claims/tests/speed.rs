//! A large cluster, in processor time. Release builds only: the promised time is for these.

use super::*;
use std::time::Duration;

/// A scene of tenants, each with a TLSRoute of two names, a Service and an EndpointSlice of three endpoints,
/// on one Gateway with an address of each family.
fn scene(tenants: u32) -> Scene {
    let mut scene = Scene::new();
    scene.gateway(
        "infra/g",
        1,
        "192.0.2.1 2001:db8::1",
        &["tls TLS:443:*.example.com from=All", "tcp TCP:9000"],
    );
    for n in 0..tenants {
        let own = format!("tenant-{n:05}/api");
        let (a, b) = (n >> 8 & 255, n & 255);
        let endpoints = [format!("10.1.{a}.{b}"), format!("10.2.{a}.{b}"), format!("fd00::{a:x}:{b:x}")];
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        scene.service(&own, &endpoints);
        let hosts = [format!("api-{n}.k8s.example.com"), format!("*.t{n}.example.com")];
        scene.tls(&own, i64::from(n), &["infra/g#tls"], &[&hosts[0], &hosts[1]], &["api:443"]);
    }
    scene
}

fn on_cpu() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[test]
fn ten_thousand_routes_are_compiled_in_50_ms() {
    let scene = scene(10_000);
    let mut shortest = Duration::MAX;
    for _ in 0..8 {
        let begun = on_cpu();
        let compiled = scene.compiled();
        shortest = shortest.min(on_cpu() - begun);
        assert_eq!(compiled.desired.routes.len(), 10_001);
        assert_eq!(compiled.desired.routes.iter().map(|route| route.names.len()).sum::<usize>(), 40_000);
    }
    println!("10,000 routes, 40,000 names, 30,000 endpoints: {shortest:.1?}");
    assert!(shortest < Duration::from_millis(50), "{shortest:?}");
}
