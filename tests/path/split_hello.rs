//! Hellos in pieces: over TCP segments, over TLS records, byte by byte, and of the maximum size.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name};
use tests::clients::{self, User};
use tests::config::Config;
use tests::corpus;
use tests::hello::hello;
use tests::raw::{self, End};
use tests::topology::Options;

use crate::scene::{AT_ONCE, ECHO_PORT, Scene, all, turn};

/// The hellos of three clients, by prefix of the file name: of one segment, of two, and the largest.
const FIXTURES: [(&str, usize); 3] = [
    ("curl-7.88.1_openssl3.0.19-tls13", 517),
    ("kubectl-1.32", 1498),
    ("curl_cffi-0.16.3-chrome131-resume-conn2", 1955),
];

/// The number of simultaneous connections; fewer than the 64 waiting hellos that one source may have.
const AT_A_TIME: usize = 16;

/// Returns the fixtures' bytes with their names, or none if the folder does not exist.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let Some(cases) = corpus::cases().unwrap() else { return Vec::new() };
    let real: Vec<_> = cases.into_iter().filter(|case| case.real && case.name.is_some()).collect();
    let find = |(prefix, length): (&str, usize)| {
        let fits = |case: &&corpus::Case| {
            let file = case.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.starts_with(prefix) && case.bytes.len() == length
        };
        let case = real.iter().find(fits).unwrap_or_else(|| panic!("no fixture {prefix} of {length} bytes"));
        (case.name.clone().unwrap(), case.bytes.clone())
    };
    FIXTURES.map(find).to_vec()
}

/// Returns a configuration in which tenant a has these names; all other names go to tenant b.
fn config(names: &[String]) -> Config {
    let mut config = Config::lab_on(ECHO_PORT);
    config.listeners[0].default_route = Some("tenant-b".into());
    config.route_mut("tenant-a").hostnames.extend(names.iter().cloned());
    config.route_mut("tenant-a").hostnames.sort();
    config.route_mut("tenant-a").hostnames.dedup();
    config
}

fn assert_tenant_a(scene: &Scene, family: Family, bytes: &[u8], ends: &[usize]) -> Result<()> {
    let backend = raw::hello(scene.lab.vip(family, TLS_PORT), bytes, ends)?;
    ensure!(backend.starts_with("tenant-a/"), "answered by {backend}");
    Ok(())
}

#[test]
fn real_hellos_split_at_every_offset_are_routed() {
    tests::skip_without_root!();
    let _turn = turn();
    let fixtures = fixtures();
    let names: Vec<String> = fixtures.iter().map(|(name, _)| name.clone()).collect();
    let scene = Scene::echo_with(&Options::default(), &config(&names));
    let mut cases = Vec::new();
    for family in FAMILIES {
        for (hello, (_, bytes)) in fixtures.iter().enumerate() {
            cases.extend((1..bytes.len()).map(|offset| (family, hello, offset)));
        }
    }
    all(&scene.lab, AT_A_TIME, &cases, |&(family, hello, offset)| {
        assert_tenant_a(&scene, family, &fixtures[hello].1, &[offset])
    });
    scene.assert_nothing_leaks();
}

#[test]
fn real_hellos_byte_by_byte_are_routed() {
    tests::skip_without_root!();
    let _turn = turn();
    let fixtures = fixtures();
    let names: Vec<String> = fixtures.iter().map(|(name, _)| name.clone()).collect();
    let scene = Scene::echo_with(&Options::default(), &config(&names));
    let cases: Vec<_> = FAMILIES
        .into_iter()
        .flat_map(|family| (0..fixtures.len()).map(move |hello| (family, hello)))
        .collect();
    all(&scene.lab, AT_A_TIME, &cases, |&(family, hello)| {
        let bytes = &fixtures[hello].1;
        let ends: Vec<usize> = (1..bytes.len()).collect();
        assert_tenant_a(&scene, family, bytes, &ends)
    });
    scene.assert_nothing_leaks();
}

#[test]
fn hellos_over_many_records_are_routed() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &config(&[]));
    let mut cases = Vec::new();
    for family in FAMILIES {
        for record_bytes in [1, 2, 3, 16, 100, 517] {
            cases.push((family, record_bytes));
        }
    }
    all(&scene.lab, 4, &cases, |&(family, record_bytes)| {
        let bytes = hello().name(server_name(0)).records_of(record_bytes).bytes();
        assert_tenant_a(&scene, family, &bytes, &[])
    });
}

/// Asserts that the longest hellos arrive, in one record and in many, written at once and in pieces.
fn assert_largest(options: &Options) {
    tests::skip_without_root!();
    let scene = Scene::echo_with(options, &config(&[]));
    let mut cases = Vec::new();
    for family in FAMILIES {
        // The longest message in one record and in several, and the longest stream.
        for (length, record_bytes) in [(16_389, 16_384), (16_469, 1000), (18_432, 40)] {
            for ends in [vec![], vec![1, 6, 1400], (1..16).map(|part| part * 1000).collect()] {
                cases.push((family, length, record_bytes, ends));
            }
        }
    }
    all(&scene.lab, 4, &cases, |(family, length, record_bytes, ends)| {
        let bytes = hello().name(server_name(0)).length(*length).records_of(*record_bytes).bytes();
        assert_tenant_a(&scene, *family, &bytes, ends)
    });
    scene.assert_nothing_leaks();
}

#[test]
fn the_largest_hello_passes_at_mtu_1500() {
    assert_largest(&Options::default());
}

#[test]
fn the_largest_hello_passes_at_mtu_1500_without_offloads() {
    assert_largest(&Options { offloads: false, ..Options::default() });
}

#[test]
fn the_largest_hello_passes_when_both_ends_take_536_bytes_a_segment() {
    assert_largest(&Options {
        client_mss: Some(536),
        backend_mss: Some(536),
        offloads: false,
        ..Options::default()
    });
}

#[test]
fn the_largest_hello_passes_to_a_backend_with_smaller_segments() {
    assert_largest(&Options { backend_mss: Some(536), ..Options::default() });
    assert_largest(&Options { backend_mtu: 1300, ..Options::default() });
}

#[test]
fn a_hello_over_16_kib_is_refused() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &config(&[]));
    // The name precedes the padding, so the hello is refused for its length.
    let mut bytes = hello().name(server_name(0)).length(16_389).bytes();
    let body = (16_384 - 4 + 2000_u32).to_be_bytes();
    bytes[6..9].copy_from_slice(&body[1..]);
    bytes.extend([22, 3, 1, 0x07, 0xd0]);
    bytes.extend([0; 2000]);
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let (refused, moved) =
            scene.counted(|| scene.lab.client.run(|| raw::refused(to, &bytes, AT_ONCE * 5)));
        assert_eq!(refused.unwrap().0, End::Reset, "{moved:?}");
        assert!(!moved.contains_key("ConnectSyn"), "{moved:?}");
    }
}

#[test]
fn a_tls_session_with_a_hello_of_many_segments_works_to_its_end() {
    tests::skip_without_root!();
    let scene = Scene::with(&Options { client_mss: Some(536), ..Options::default() }, &Config::lab());
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    let mut config = (*user.config()).clone();
    config.alpn_protocols = (0..60).map(|n| vec![b'a' + n % 26; 200]).collect();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let config = std::sync::Arc::new(config.clone());
        let stream = scene.lab.client.run(|| tests::tls::connect(to, config, &server_name(0))).unwrap();
        assert!(clients::ask(stream).unwrap().starts_with("tenant-a/"));
    }
}

#[test]
fn a_hello_with_long_pauses_is_routed() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &config(&[]));
    let bytes = hello().name(server_name(0)).length(3000).bytes();
    let cases: Vec<_> = FAMILIES.into_iter().collect();
    all(&scene.lab, 2, &cases, |&family| {
        use std::io::Write;
        let mut stream = tests::tls::dial(scene.lab.vip(family, TLS_PORT))?;
        for part in bytes.chunks(700) {
            stream.write_all(part)?;
            std::thread::sleep(Duration::from_millis(300));
        }
        let name = tests::server::read_line(&mut stream)?;
        ensure!(name.as_deref().is_some_and(|name| name.starts_with("tenant-a/")), "answered by {name:?}");
        Ok(())
    });
}
