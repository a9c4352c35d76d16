//! What `vestibule run` announced with the same maps.

use std::net::IpAddr;

use common::maps::announced::{Announced, AnnouncedKey, OWNER_HERE};
use common::maps::name;
use tests::pinned::{insert_pinned, pinned_entries};
use tests::skip_without_root;

use super::scene::{Scene, until};

/// Every node of a cluster would answer for it, for ever.
#[test]
fn an_agent_ends_what_was_announced_before_it() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let first = scene.agent("first");
    until("the route is in the maps", &[&first], || scene.backends().len() == 1);
    let map = scene.pins.path().join(name::ANNOUNCED);
    let device = scene.namespace.ifindex("uplink").unwrap();
    let key = AnnouncedKey { address: IpAddr::from([192, 0, 2, 99]).into(), device };
    insert_pinned(&map, key, Announced { link: [2, 0, 0, 0, 0, 1], owner: OWNER_HERE }).unwrap();
    first.end();
    let second = scene.agent("second");
    until("nothing is announced any more", &[&second], || {
        pinned_entries::<AnnouncedKey, Announced>(&map).unwrap().is_empty()
    });
}
