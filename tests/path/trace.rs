//! `vestibule trace`.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, ChildStderr, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::maps::name;
use common::maps::trace::{LINES_PER_SECOND, TraceCount, TraceFilter};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::addresses::{FAMILIES, Family, TLS_PORT, client, server_name, tenant_name};
use tests::hello::hello;
use tests::raw::{self, End};
use tests::report;
use tests::topology::CLIENT_DEVICE;
use userspace::dataplane::table::Table;

use crate::open::Open;
use crate::scene::{AT_ONCE, Scene, eventually};

/// A running `vestibule trace`; dropping it kills it.
struct Tracing {
    child: Child,
    lines: Option<JoinHandle<String>>,
    messages: BufReader<ChildStderr>,
}

impl Tracing {
    /// Starts it with these arguments and waits until it is tracing.
    fn start(scene: &Scene, arguments: &[&str]) -> Self {
        let mut command = scene.daemon.command(&scene.lab.balancer).unwrap();
        command.arg("trace").args(arguments).args(["-o", "json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let lines = std::thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            text
        });
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        messages.read_line(&mut first).unwrap();
        assert!(first.starts_with("tracing"), "{first}");
        Self { child, lines: Some(lines), messages }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end; returns what it printed, and what it reported about losses.
    fn finish(mut self) -> (Vec<Value>, String) {
        let mut said = String::new();
        self.messages.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
        (report::objects(&self.lines.take().unwrap().join().unwrap()).unwrap(), said)
    }

    /// Ends it as Ctrl-C does.
    fn end(self) -> (Vec<Value>, String) {
        self.signal(Signal::SIGINT);
        self.finish()
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text<'a>(packet: &'a Value, field: &str) -> &'a str {
    packet[field].as_str().unwrap_or_default()
}

/// Returns side, class and reason of each packet.
fn story(packets: &[Value]) -> Vec<[&str; 3]> {
    packets.iter().map(|packet| ["side", "class", "reason"].map(|field| text(packet, field))).collect()
}

#[test]
fn a_connection_is_printed_packet_by_packet() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let from = client(family).to_string();
        let vip = scene.lab.vip(family, TLS_PORT).to_string();
        // Without `--to`, a neighbour solicitation of the client would be printed too.
        let tracing = Tracing::start(&scene, &["--from", &from, "--to", &vip]);
        let mut open = Open::by_name(&scene, family, &server_name(0));
        open.assert_alive();
        let own = open.stream.local_addr().unwrap().to_string();
        let (packets, said) = tracing.end();
        assert_eq!(said, "", "nothing was lost");
        let story = story(&packets);
        assert_eq!(story[0], ["client", "new", "syn/answered"], "{packets:#?}");
        assert_eq!(story[1], ["client", "new", "syn/acked"], "{packets:#?}");
        for step in [["backend", "pending", "connect/hello"], ["client", "flow", "forward/to_backend"]] {
            assert!(story.contains(&step), "{step:?} is missing: {packets:#?}");
        }
        assert!(story.contains(&["backend", "flow", "forward/to_client"]), "{packets:#?}");
        for packet in &packets {
            assert_eq!(text(packet, "client"), own, "{packet:#}");
            assert_eq!(text(packet, "vip"), vip, "{packet:#}");
            assert_eq!(text(packet, "hook"), "tcx", "{packet:#}");
            let from_client = text(packet, "side") == "client";
            assert_eq!(text(packet, "device") == CLIENT_DEVICE, from_client, "{packet:#}");
            assert_eq!(text(packet, "source") == own, from_client, "{packet:#}");
            if text(packet, "class") == "flow" {
                assert_eq!(text(packet, "route"), tenant_name(0), "{packet:#}");
                assert_ne!(text(packet, "backend"), "", "{packet:#}");
            }
        }
        let numbers: Vec<u64> = packets.iter().map(|packet| packet["number"].as_u64().unwrap()).collect();
        let first = numbers[0];
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (first..first + numbers.len() as u64).collect::<Vec<_>>(), "none is missing");
    }
}

#[test]
fn a_refusal_says_its_reason_and_filters_narrow_what_is_printed() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let vip = scene.lab.vip(Family::V4, TLS_PORT);
    let other = scene.lab.vip(Family::V4, 20_001).to_string();
    let tracing = Tracing::start(
        &scene,
        &["--from", "0.0.0.0/0", "--to", &vip.to_string(), "--reason", "route/unknown_name", "--count", "1"],
    );
    // Neither the open connection nor the second refusal is printed.
    let _open = Open::by_name(&scene, Family::V4, &server_name(0));
    for _ in 0..2 {
        let unknown = hello().name("nobody.example.org").bytes();
        let (end, _) = scene.lab.client.run(|| raw::refused(vip, &unknown, AT_ONCE)).unwrap();
        assert_eq!(end, End::Reset);
    }
    let (packets, _) = tracing.finish();
    assert_eq!(packets.len(), 1, "{packets:#?}");
    assert_eq!(text(&packets[0], "reason"), "route/unknown_name");
    assert_eq!(text(&packets[0], "class"), "pending", "{:#}", packets[0]);

    let tracing = Tracing::start(&scene, &["--from", "0.0.0.0/0", "--to", &other]);
    let second = scene.daemon.cli(&["trace", "--from", "0.0.0.0/0"]).unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("another `vestibule trace`"), "{said}");
    let _open = Open::by_name(&scene, Family::V4, &server_name(0));
    let (packets, _) = tracing.end();
    assert!(packets.is_empty(), "none is for {other}: {packets:#?}");
}

/// Sends a packet that is not TCP to a VIP.
fn ping(scene: &Scene, times: u64) {
    let to = scene.lab.vip(Family::V4, 9);
    scene.lab.client.run(|| {
        let socket = UdpSocket::bind((client(Family::V4), 0)).unwrap();
        for _ in 0..times {
            // A send may report the ICMP error about the previous packet.
            let _ = socket.send_to(b"traced?", to);
        }
    });
}

#[test]
fn a_flood_is_cut_to_the_limit_and_what_is_left_out_is_counted() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let tracing = Tracing::start(&scene, &["--from", &client(Family::V4).to_string()]);
    let start = Instant::now();
    let sent = 10 * LINES_PER_SECOND;
    let ((), counted) =
        scene.counted_until(|| ping(&scene, sent), |counted| counted.values().sum::<u64>() >= sent);
    let (packets, said) = tracing.end();
    let seconds = start.elapsed().as_secs() + 2;
    let flood: u64 = counted.values().sum();
    assert!(flood >= sent, "{counted:?}");
    assert!(packets.len() as u64 <= seconds * LINES_PER_SECOND, "{} lines in {seconds} s", packets.len());
    assert!(packets.iter().any(|packet| text(packet, "reason") == "classify/unreachable"));
    let lost: u64 = said
        .lines()
        .map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap_or_else(|_| panic!("{said}")))
        .sum();
    assert!(lost > 0, "{said}");
    assert_eq!(packets.len() as u64 + lost, sent, "printed {}, {said}", packets.len());
}

fn element<T: userspace::dataplane::table::Plain>(scene: &Scene, map: &'static str) -> T {
    Table::<u32, T>::open(scene.daemon.pins(), map).unwrap().look_up(&0).unwrap().unwrap()
}

#[test]
fn it_needs_no_daemon_and_leaves_nothing_behind() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    scene.daemon.end(Signal::SIGKILL).unwrap();
    let tracing = Tracing::start(&scene, &["--from", &client(Family::V6).to_string()]);
    let open = Open::by_name(&scene, Family::V6, &server_name(1));
    let (packets, _) = tracing.end();
    assert!(story(&packets).contains(&["client", "new", "syn/answered"]), "{packets:#?}");
    assert_eq!(element::<TraceFilter>(&scene, name::TRACE), TraceFilter::zeroed(), "it ended in order");
    drop(open);

    let tracing = Tracing::start(&scene, &["--from", &client(Family::V4).to_string()]);
    ping(&scene, 10);
    let chosen = || element::<TraceCount>(&scene, name::TRACE_COUNT).chosen;
    assert!(eventually(Duration::from_secs(5), || chosen() >= 10));
    tracing.signal(Signal::SIGKILL);
    std::thread::sleep(Duration::from_secs(3));
    let before = chosen();
    ping(&scene, 10);
    assert_eq!(chosen(), before, "nothing is logged three seconds after the command was killed");
    assert_eq!(element::<TraceFilter>(&scene, name::TRACE).until_ns, 0, "a packet switched the filter off");
    // The next command starts normally.
    let tracing = Tracing::start(&scene, &["--from", &client(Family::V4).to_string()]);
    ping(&scene, 1);
    assert_eq!(tracing.end().0.len(), 1);
}
