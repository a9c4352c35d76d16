//! A backend, a route or a right that 100,000 connections depend on is removed.

use std::time::Duration;

use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::config::Config;
use tests::copies;
use tests::topology::Options;
use tests::tuple::client_tuple;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually, turn};

/// The connections that end. All but one are in the maps alone, as copies of that one.
const BEHIND: u32 = 100_000;
/// How long it may take in a debug build on a busy machine. `cargo xtask bench --only remove` measures it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Removes what a tenant's connections depend on. Returns the reason that they are counted under.
type Removal = fn(&mut Config) -> Reason;

const REMOVALS: [Removal; 3] = [
    |config| {
        config.route_mut(tenant_name(0)).backends.retain(|backend| backend.address.is_ipv6());
        Reason::ExpireRemoved
    },
    |config| {
        config.routes.retain(|route| route.name != tenant_name(1));
        config.listeners.retain(|listener| {
            !listener.name.starts_with(tenant_name(1)) && listener.default_route.is_none()
        });
        Reason::ExpireRemoved
    },
    |config| {
        config.route_mut(tenant_name(2)).source_ranges = Some(vec!["198.51.100.0/24".into(), "::/0".into()]);
        Reason::ExpireRefused
    },
];

#[test]
fn a_removal_ends_all_of_a_hundred_thousand_connections_with_resets_to_both_ends() {
    tests::skip_without_root!();
    let _turn = turn();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(500_000);
    let scene = Scene::echo_with(&Options::default(), &config);
    copies::own_clients(&scene.lab.client).unwrap();
    let pins = Pins::new(scene.daemon.pins());
    let maps = read::open(&pins).unwrap();
    for (tenant, remove) in REMOVALS.into_iter().enumerate() {
        let [v4, v6] = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(tenant)));
        let (mut ended, mut beside) = (v4, v6);
        let key = client_tuple(ended.stream.local_addr().unwrap(), scene.lab.vip(Family::V4, TLS_PORT));
        let first = tenant as u32 * BEHIND;
        copies::copy(&maps, &key, first..first + BEHIND - 1).unwrap();
        let ends = [&scene.lab.client, &scene.lab.tenants[tenant].namespace];
        let received = || ends.map(|end| end.statistic("Tcp", "InSegs").unwrap());
        let before = received();
        let reason = remove(&mut config);
        let count = || scene.daemon.reasons().unwrap().get(reason.name()).copied().unwrap_or(0);
        let counted = count();
        scene.daemon.reload(&config).unwrap();
        // Other changes do not wait for it.
        config.routes[0].hostnames.push(format!("another{tenant}.example.net"));
        let beside_it = scene.daemon.reload(&config).unwrap();
        ended.assert_reset(PATIENCE);
        assert!(eventually(PATIENCE, || count() - counted >= u64::from(BEHIND)), "{}", count() - counted);
        // Once more a second later, for those that began meanwhile: none is ended twice. A route takes the other family with it.
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(count() - counted, u64::from(BEHIND) + u64::from(tenant == 1));
        let after = received();
        for (before, after) in before.into_iter().zip(after) {
            assert!(after - before >= u64::from(BEHIND), "{} RSTs of {BEHIND} arrived", after - before);
        }
        assert!(beside_it < PATIENCE / 4, "{beside_it:?}");
        if tenant != 1 {
            beside.assert_alive();
        }
    }
    let reasons = scene.daemon.reasons().unwrap();
    assert_eq!(reasons.get(Reason::EmitCopyLost.name()).copied().unwrap_or(0), 0, "{reasons:?}");
}
