//! Another program takes away what the daemon wrote.

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::listener::{AddressRole, Listener, ListenerKey};
use common::maps::name;
use common::maps::route::{Label, LabelKey, MemberKey, NameRoute, Page, PageKey, Route, ShortNameKey};
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::config::Config;
use tests::hello::hello;
use tests::pinned::{clear_pinned, detach_link, insert_pinned, pinned_entries};
use tests::raw;
use tests::topology::Options;

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// A walk begins ten seconds after the one before. Without it nothing would be served again.
const WALK: Duration = Duration::from_secs(15);

/// Whether a new connection reaches its tenant.
fn serves(scene: &Scene, family: Family, tenant: usize) -> bool {
    let bytes = hello().name(server_name(tenant)).bytes();
    let to = scene.lab.vip(family, TLS_PORT);
    scene
        .lab
        .client
        .run(|| raw::hello(to, &bytes, &[]).is_ok_and(|name| name.starts_with(tenant_name(tenant))))
}

fn all_serve(scene: &Scene) -> bool {
    FAMILIES.iter().all(|family| (0..3).all(|tenant| serves(scene, *family, tenant)))
}

/// `bpftool map delete`, of every element of every map.
#[test]
fn deleted_elements_are_found_and_written_again() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    scene.lab.client.enter();
    let mut kept = Open::by_name(&scene, Family::V4, &server_name(0));
    let pin = |name: &str| scene.daemon.pins().join(name);
    let deleted = [
        clear_pinned::<ShortNameKey, NameRoute>(&pin(name::ROUTES_EXACT)).unwrap(),
        clear_pinned::<u32, Route>(&pin(name::ROUTES)).unwrap(),
        clear_pinned::<u32, Backend>(&pin(name::BACKENDS)).unwrap(),
        clear_pinned::<ListenerKey, Listener>(&pin(name::LISTENERS)).unwrap(),
        clear_pinned::<Address, AddressRole>(&pin(name::ADDRESSES)).unwrap(),
        clear_pinned::<LabelKey, Label>(&pin(name::LABELS)).unwrap(),
        clear_pinned::<MemberKey, u32>(&pin(name::MEMBERS)).unwrap(),
        clear_pinned::<PageKey, Page>(&pin(name::MAGLEV)).unwrap(),
    ];
    assert!(deleted.iter().all(|count| *count > 0), "{deleted:?}");
    assert!(eventually(WALK, || all_serve(&scene)), "{}", scene.daemon.log());
    kept.assert_alive();
    let log = scene.daemon.log();
    assert!(log.contains("deleted or changed by another program"), "{log}");
}

/// `bpftool map update`: one tenant's name leads to another tenant.
#[test]
fn a_changed_element_is_put_back() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let pin = scene.daemon.pins().join(name::ROUTES_EXACT);
    let names = pinned_entries::<ShortNameKey, NameRoute>(&pin).unwrap();
    let (key, value) = names[0];
    let (_, other) = names.iter().find(|(_, other)| other.route != value.route).unwrap();
    insert_pinned(&pin, key, *other).unwrap();
    let is_back = || {
        let now = pinned_entries::<ShortNameKey, NameRoute>(&pin).unwrap();
        now.contains(&(key, value))
    };
    assert!(eventually(WALK, is_back), "{}", scene.daemon.log());
    assert!(scene.daemon.log().contains("1 element of its maps was"), "{}", scene.daemon.log());
}

/// The pin is removed, or `bpftool link detach`.
#[test]
fn a_detached_program_is_attached_again() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let links =
        || fs::read_dir(scene.daemon.pins().join("links")).unwrap().map(|entry| entry.unwrap().path());
    let unpin = |pin: &Path| fs::remove_file(pin).unwrap();
    let detach = |pin: &Path| detach_link(pin).unwrap();
    for (turn, take_away) in [&unpin as &dyn Fn(&Path), &detach].into_iter().enumerate() {
        assert!(all_serve(&scene));
        let pins: Vec<_> = links().collect();
        assert!(!pins.is_empty());
        pins.iter().for_each(|pin| take_away(pin));
        // The kernel detaches a moment later.
        let is_found =
            || scene.daemon.log().matches("was detached from device").count() == (turn + 1) * pins.len();
        assert!(eventually(WALK, is_found), "{}", scene.daemon.log());
        assert!(eventually(WALK, || all_serve(&scene)), "{}", scene.daemon.log());
        assert_eq!(links().count(), pins.len());
    }
}

/// A map that another program has filled takes nothing back.
#[test]
fn what_cannot_be_written_again_hides_nothing_else() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_names = Some(64);
    let scene = Scene::echo_with(&Options::default(), &config);
    let pin = scene.daemon.pins().join(name::ROUTES_EXACT);
    let names = pinned_entries::<ShortNameKey, NameRoute>(&pin).unwrap();
    clear_pinned::<ShortNameKey, NameRoute>(&pin).unwrap();
    let (key, value) = names[0];
    for number in 0.. {
        let mut other = key;
        other.name[..4].copy_from_slice(&u32::to_be_bytes(number));
        if insert_pinned(&pin, other, value).is_err() {
            break;
        }
    }
    let log = || scene.daemon.log();
    assert!(eventually(WALK, || log().contains("takes no more than 64 entries")), "{}", log());
    // The walk goes on: it reaches what comes last, the devices.
    fs::read_dir(scene.daemon.pins().join("links"))
        .unwrap()
        .for_each(|link| fs::remove_file(link.unwrap().path()).unwrap());
    assert!(eventually(5 * WALK, || log().contains("was detached from device")), "{}", log());
    clear_pinned::<ShortNameKey, NameRoute>(&pin).unwrap();
    assert!(eventually(3 * WALK, || all_serve(&scene)), "{}", log());
}
