//! Many short connections under loss: nothing of them is kept afterwards.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use common::maps::address::Address;
use common::maps::flow::{ClientTuple, HalfOpen};
use common::maps::name;
use common::maps::source::Source;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::config::{Config, DIRECT_PORT};
use tests::hello::hello;
use tests::injector::Faults;
use tests::pinned::pinned_entries;
use tests::raw::write_split;
use tests::server::read_line;
use tests::tls;
use tests::topology::Options;

use crate::scene::{ECHO_PORT, Scene, all, eventually, turn};

/// The number of connections, by default and with `VESTIBULE_SOAK=1`.
const CONNECTIONS: u64 = 1_500;
const SOAKED: u64 = 100_000;
const THREADS: usize = 48;
/// Seconds until a silent flow counts as idle, and a source as quiet. Sweeps run every quarter of the first.
const IDLE: u64 = 20;
const QUIET: u64 = 8;
/// The longest time that anything may be kept: a closed flow for 5 s; a flow that one side lost silently, for
/// the idle time; the count of a source, for the hello timeout; each until the next sweep.
const KEPT: Duration = Duration::from_secs(IDLE + IDLE / 4 + 10);

/// Makes one connection. If all its backends seem dead it is refused and tried again once; refusals are counted.
fn once(scene: &Scene, family: Family, n: u64, resets: bool, refused: &AtomicU64) -> Result<()> {
    match visit(scene, family, n, resets) {
        Err(error) if refused_by_us(&error) => {
            eprintln!("refused: {family:?} {n}: {error:#}");
            refused.fetch_add(1, Ordering::Relaxed);
            visit(scene, family, n, resets).context("the second time")
        }
        done => done,
    }
}

fn refused_by_us(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

/// Makes one connection by TLS or TCP listener: a hello in two pieces, its echo, and an end by either side.
fn visit(scene: &Scene, family: Family, n: u64, resets: bool) -> Result<()> {
    let tenant = (n % 3) as usize;
    let bytes = hello().name(server_name(tenant)).length(700).bytes();
    let port = if n.is_multiple_of(5) { DIRECT_PORT + tenant as u16 } else { TLS_PORT };
    let mut stream = tls::dial(scene.lab.vip(family, port)).context("connecting")?;
    write_split(&mut stream, &bytes, &[300]).context("writing")?;
    let name = read_line(&mut stream).context("reading the name")?.context("ended without a name")?;
    ensure!(name.starts_with(tenant_name(tenant)), "meant for tenant {tenant}, answered by {name}");
    let mut echo = vec![0; bytes.len()];
    stream.read_exact(&mut echo).context("reading back")?;
    ensure!(echo == bytes, "other bytes came than were sent");
    match n % 8 {
        // If the RST is lost and the backend has nothing to send, only idleness shows that the client is gone.
        0 if resets => {
            stream.write_all(b"more").context("writing more")?;
            tests::server::reset(&stream).context("resetting")?;
        }
        // The client's FIN, then the backend's.
        1..=3 => {
            stream.shutdown(Shutdown::Write).context("closing a half")?;
            stream.read_to_end(&mut echo).context("reading to the end")?;
        }
        _ => {}
    }
    Ok(())
}

#[test]
fn nothing_is_kept_of_thousands_of_connections_under_loss() {
    tests::skip_without_root!();
    let turn = turn();
    let soak = std::env::var_os("VESTIBULE_SOAK").is_some_and(|value| value == "1");
    let faults = |seed| Some(Faults { loss: 2, duplication: 0, reordering: 1, seed });
    let options = Options { client_faults: faults(41), backend_faults: faults(42), ..Options::default() };
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.idle_timeout = Some(format!("{IDLE}s"));
    config.settings.hello_timeout = Some(format!("{QUIET}s"));
    config.settings.max_flows = Some(65_536);
    let scene = Scene::echo_with(&options, &config);
    let cases: Vec<(Family, u64)> =
        (0..if soak { SOAKED } else { CONNECTIONS }).map(|n| (FAMILIES[(n % 2) as usize], n / 2)).collect();
    let begun = Instant::now();
    let refused = AtomicU64::new(0);
    let (_, moved) = scene
        .counted(|| all(&scene.lab, THREADS, &cases, |&(family, n)| once(&scene, family, n, soak, &refused)));
    // At 2 % loss, four SYNs or SYN-ACKs in a row are lost once in 400,000 times.
    let refused = refused.into_inner();
    assert!(refused <= moved.get("ConnectExhausted").copied().unwrap_or(0), "{refused} refused: {moved:?}");
    let took = begun.elapsed();
    drop(turn);
    let over = Instant::now();
    let entries = || {
        let pin = |name: &str| scene.daemon.pins().join(name);
        let sources = pinned_entries::<Address, Source>(&pin(name::SOURCES)).unwrap();
        let half_opens = pinned_entries::<ClientTuple, HalfOpen>(&pin(name::HALF_OPENS)).unwrap();
        let [flows, hellos, nats] = scene.entries();
        [flows, hellos, nats, sources.len(), half_opens.len()]
    };
    let gone = eventually(KEPT, || {
        std::thread::sleep(Duration::from_millis(100));
        entries() == [0; 5]
    });
    assert!(gone, "flows, hellos, NAT ports, sources, half-open: {:?}; {moved:?}", entries());
    eprintln!(
        "{} connections in {took:.1?}, nothing kept {:.1?} later; {moved:?}",
        cases.len(),
        over.elapsed()
    );
}
