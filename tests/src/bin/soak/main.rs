//! `cargo xtask soak`: for hours, random connections of honest clients beside clients that abort, broken hellos,
//! floods, forged packets, loss, changes of routes and backends, and a daemon that is killed. It stops at the first
//! connection that is lost, altered or misrouted without a fault of its own, and when the RSTs captured are not those
//! that were counted.

/// The command line.
mod options;
/// What a run does, and where it is continued.
mod course;
/// Tenants and their configuration.
mod tenants;
/// Namespaces and links.
mod network;
/// Hellos.
mod greeting;
/// What each connection does.
mod plan;
/// What all share.
mod book;
/// Sockets.
mod socket;
/// The clients.
mod client;
/// The backends.
mod server;
/// The stranger.
mod stranger;
/// The last packets.
mod tail;
/// Signals.
mod signals;
/// Loss, changes, and the daemon's life.
mod director;
/// Reports of faults.
mod report;
/// The table of all runs.
mod table;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use tests::net;
use tests::resets::capture::Capture;

use book::Book;
use course::{Cell, Course};
use director::Director;
use network::Network;
use options::Options;
use server::Servers;
use table::Row;
use tail::Tail;

/// Clients whose connections take long, beside the others.
const PATIENT: u64 = 4;

fn main() -> ExitCode {
    match options::read(std::env::args().skip(1)).and_then(|options| conduct(&options)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nreason: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the soak, reports, and appends the row to the table.
fn conduct(options: &Options) -> Result<ExitCode> {
    if let Some(why) = net::unavailable() {
        bail!("the soak {why}");
    }
    signals::take()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?;
    let course = match *options {
        Options::Resume => table::to_resume()?,
        Options::New { minutes, seed, clients } => Course {
            seed: seed.unwrap_or(since.as_nanos() as u64 % 1_000_000_000),
            from: 0,
            time: Duration::from_secs(minutes * 60),
            clients,
        },
    };
    let (seed, of_changes) = (course.seed, course.seed_of_changes());
    println!("soak: {course:?}");
    let network = Network::new(of_changes).context("making the network")?;
    let book = Arc::new(Book::default());
    let servers = Servers::start(&book, &network.sites)?;
    let capture = Capture::start(&network.node, &Network::addresses())?;
    let tail = Tail::start(&network.node)?;
    let mut director = Director::new(&book, &network, (&capture, &tail), of_changes)?;
    let (tap, ethernet) = network.tap_of_stranger()?;
    let moved = std::thread::scope(|scope| {
        for client in 0..course.clients + PATIENT {
            let (book, clients) = (&book, &network.clients);
            scope.spawn(move || client::run(book, clients, &course, client));
        }
        scope.spawn(|| stranger::run(&book, &tap, ethernet, of_changes));
        let conducted = director.run(course.time);
        let faults = book.faults();
        // Clients end their connections; what the end of the soak causes is no fault.
        book.stop.store(true, Ordering::Relaxed);
        let written = (!faults.is_empty()).then(|| report::write(&director, seed, &faults)).transpose()?;
        if let Some(report::Written { path, .. }) = &written {
            println!("the report: {}", path.display());
        }
        conducted.map(|()| written.map(|written| written.moved))
    })?;
    drop(servers);
    let fault = book.faults().first().map(|fault| fault.what.lines().next().unwrap_or_default().to_owned());
    let stopped = signals::came() && fault.is_none();
    let reached = book.reached.load(Ordering::Relaxed);
    let rest = if stopped { course.rest(reached, director.elapsed()) } else { None };
    let row = Row {
        date: tests::record::date(since.as_secs()),
        commit: tests::record::commit(),
        cell: Cell { seed, from: course.from, rest },
        minutes: director.elapsed().as_secs_f64() / 60.0,
        classes: book.classes(),
        tally: director.tally.clone(),
        fault,
        moved,
    };
    let path = table::append(&row)?;
    println!("\n{row:#?}\nappended to {}", path.display());
    Ok(if row.fault.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
