//! `vestibule explain`.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Shown;
use super::print::{self, Row};
use super::probe::SOCKET;
use crate::admin;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::explain::{Bound, Client, Decision, Query, decide, image_of};
use crate::model::NodeFacts;
use crate::plan::{Counts, MapsImage};
use crate::sources::file;

/// The number of bytes read of a hello's file. Far more than the 18 KiB at which a hello is refused.
const HELLO_FILE_BYTES: u64 = 1 << 20;

/// The time limit for the agent's answer.
const LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[group(id = "asked", required = true, multiple = false, args = ["name", "hello"])]
pub(super) struct Args {
    /// The server name that the client sends.
    #[arg(long)]
    name: Option<String>,
    /// Files with raw bytes as a client would send them. Prints one answer for each, in order.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    hello: Vec<PathBuf>,
    /// The client's address and optionally its port, which determine the backend.
    #[arg(long, value_name = "IP[:PORT]", value_parser = client)]
    from: Option<Client>,
    /// The listener's name; in a cluster ADDRESS:PORT, such as `192.0.2.9:443`. Default: the only TLS listener.
    #[arg(long)]
    listener: Option<String>,
    /// Use this configuration instead of what is in the kernel. Does not need root.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Socket of the agent, which knows whose each route is.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    shown: Shown,
}

fn client(text: &str) -> Result<Client, String> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok(Client { address: socket.ip(), port: Some(socket.port()) });
    }
    let address: IpAddr = text
        .parse()
        .map_err(|_| "an address with or without a port: 192.0.2.7, 192.0.2.7:40000, [2001:db8::7]:40000")?;
    Ok(Client { address, port: None })
}

pub(super) fn show(question: &Args, pins: &Pins) -> Result<ExitCode> {
    let Some((world, counts)) = world(question, pins)? else { return Ok(ExitCode::FAILURE) };
    let listener = question.listener.as_deref();
    let answer = |asked: Query<'_>| -> Result<Decision> {
        let mut decision = decide(&world, &counts, listener, asked, question.from)?;
        // A file has no tenants.
        let route = decision.route.as_deref().filter(|_| question.config.is_none());
        decision.tenant = route.and_then(|route| admin::tenant_of(&question.socket, route, LIMIT));
        Ok(decision)
    };
    let mut decisions = Vec::new();
    if let Some(name) = &question.name {
        decisions.push(answer(Query::Name(name))?);
    }
    for path in &question.hello {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(HELLO_FILE_BYTES).read_to_end(&mut bytes))
            .with_context(|| path.display().to_string())?;
        decisions.push(answer(Query::Hello(&bytes))?);
    }
    let rows = decisions.iter().map(row).collect::<Result<Vec<_>>>()?;
    let headings = [
        "verdict",
        "server name",
        "listener",
        "route",
        "tenant",
        "pattern",
        "sources",
        "bounds",
        "backend",
        "why",
    ];
    print::rows(&headings, &rows, question.shown.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the maps and counts to use; `None`: the file is invalid, and its problems have been printed.
fn world(question: &Args, pins: &Pins) -> Result<Option<(MapsImage, Counts)>> {
    let Some(path) = &question.config else {
        let maps = read::open(pins)?;
        return Ok(Some((MapsImage::from(read::content(&maps)?), read::counts(&maps)?)));
    };
    match file::load(path, &NodeFacts::default()) {
        Ok(loaded) => Ok(Some((image_of(&loaded.desired), Counts::default()))),
        Err(problems) => {
            let path = path.display().to_string();
            for problem in &problems {
                eprintln!("{}", problem.in_file(&path));
            }
            Ok(None)
        }
    }
}

fn row(decision: &Decision) -> Result<Row> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(Row {
        json: print::Json::of(decision)?,
        cells: vec![
            decision.verdict.into(),
            decision.server_name.clone().unwrap_or_else(|| format!("({})", decision.parse)),
            decision.listener.clone(),
            text(&decision.route),
            text(&decision.tenant),
            text(&decision.pattern),
            decision.source_ranges.as_ref().map_or_else(|| "any".into(), |ranges| sources(ranges)),
            decision.bounds.iter().map(bound).collect::<Vec<_>>().join(", "),
            decision.backend.map(|backend| backend.to_string()).unwrap_or_default(),
            format!("{}: {}", decision.reason, decision.why),
        ],
    })
}

/// The most ranges of a row; all are in JSON.
const RANGES_SHOWN: usize = 4;

/// `10.0.0.0/8, 192.0.2.0/24`.
fn sources(ranges: &[String]) -> String {
    match ranges.split_at_checked(RANGES_SHOWN) {
        Some((first, rest)) if !rest.is_empty() => format!("{} and {} more", first.join(", "), rest.len()),
        _ if ranges.is_empty() => "none".into(),
        _ => ranges.join(", "),
    }
}

/// `route_full 12/250000`.
fn bound(bound: &Bound) -> String {
    format!("{} {}/{}", bound.reason, bound.count, bound.most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_ranges_the_first_are_shown() {
        let ranges =
            |count: usize| sources(&(0..count).map(|n| format!("10.{n}.0.0/16")).collect::<Vec<_>>());
        assert_eq!((&*ranges(0), &*ranges(1)), ("none", "10.0.0.0/16"));
        assert_eq!(ranges(4), "10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16");
        assert_eq!(ranges(6), "10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16 and 2 more");
    }

    #[test]
    fn a_client_is_an_address_with_or_without_a_port() {
        let address = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(client("192.0.2.7"), Ok(Client { address, port: None }));
        assert_eq!(client("192.0.2.7:40000"), Ok(Client { address, port: Some(40000) }));
        assert_eq!(client("[2001:db8::7]:1").unwrap().port, Some(1));
        assert!(client("2001:db8::7").unwrap().address.is_ipv6());
        assert!(client("tenant").is_err());
    }
}
