//! A daemon with maps of the largest size that its settings allow.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tests::addresses::{FAMILIES, TLS_PORT, server_name};
use tests::config::Config;
use tests::daemon::Daemon;
use tests::hello::hello;
use tests::server::read_line;
use tests::tls;
use tests::topology::{Lab, Options};
use userspace::dataplane::memory;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use crate::loads;

/// `maxFlows`, and in the short form.
const MOST: u32 = 16_777_216;
const FEW: u32 = 200_000;

const ECHO_PORT: u16 = 7000;

/// Returns the bytes of all maps at first, as `vestibule check` says them.
fn said(daemon: &Daemon) -> Result<u64> {
    let path = daemon.config_path();
    let text = daemon.cli_text(&["check", path.to_str().context("a path in ASCII")?])?;
    let said = text.split_once("memory of the kernel's maps: ").and_then(|(_, text)| text.split_once(" MiB"));
    let (mebibytes, _) = said.with_context(|| text.clone())?;
    Ok(mebibytes.parse::<u64>()? << 20)
}

#[test]
fn the_largest_maps_take_what_check_says_and_carry_connections() {
    tests::skip_without_root!();
    let _alone = loads::alone();
    let flows = if loads::is_long() { MOST } else { FEW };
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(flows);
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    let _echoes = lab.echo_servers(ECHO_PORT).unwrap();
    let mut daemon = Daemon::prepare(&lab.balancer, &config, &[]).unwrap();
    let (said, before) = (said(&daemon).unwrap(), memory::available().unwrap());
    if said + said / 4 > before {
        let [said, before] = [said, before].map(|bytes| bytes >> 20);
        eprintln!("SKIPPED: maps of {flows} flows take {said} MiB, {before} MiB are available");
        return;
    }
    let begun = Instant::now();
    daemon.launch(&lab.balancer).unwrap();
    let ready = begun.elapsed();
    let maps = read::open(&Pins::new(daemon.pins())).unwrap();
    assert_eq!(maps.flows.capacity(), flows);
    // What takes less is not seen beside what else the machine does.
    let taken = before.saturating_sub(memory::available().unwrap());
    let is_seen = loads::is_long();
    assert!(!is_seen || taken.abs_diff(said) < said / 10, "{} MiB, and not {}", taken >> 20, said >> 20);
    let mut open = Vec::new();
    for family in FAMILIES {
        let bytes = hello().name(server_name(0)).bytes();
        let mut stream = lab.client.run(|| tls::dial(lab.vip(family, TLS_PORT))).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&bytes).unwrap();
        assert!(read_line(&mut stream).unwrap().unwrap().starts_with("tenant-a/"), "{family:?}");
        let mut echo = vec![0; bytes.len()];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(echo, bytes);
        open.push(stream);
    }
    assert_eq!(maps.flows.count().unwrap(), 2);
    let count = format!(
        "maxFlows {flows}: maps of {} MiB, {} MiB as `check` says, ready after {} ms",
        taken >> 20,
        said >> 20,
        ready.as_millis()
    );
    loads::record("largest", count, "", begun);
}
