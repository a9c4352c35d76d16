//! The congestion control of every socket of a rig. The machine's default may pace (`bbr`): a backend that
//! paces towards the node halves bulk throughput, and then we do not measure Vestibule. It is set on routes,
//! including connected ones, and locked. A namespace can choose for itself only what the whole machine
//! allows, and that is not ours to change.

use ::tests::net::Namespace;
use anyhow::{Context, Result, ensure};

/// The congestion control of all sockets.
const CONTROL: &str = "cubic";

/// Sets it on all routes that a namespace currently has.
pub(crate) fn set(namespace: &Namespace) -> Result<()> {
    let routes = text(namespace, "ip", &["-4", "route", "show"])?;
    ensure!(!routes.trim().is_empty(), "{} has no routes", namespace.name());
    namespace.ip(&changes(&routes))
}

/// Fails if a socket has another congestion control or, with `some`, if there are no sockets.
pub(crate) fn check(namespace: &Namespace, some: bool) -> Result<()> {
    let sockets = text(namespace, "ss", &["-HtinO", "state", "established"])?;
    ensure!(!some || !sockets.trim().is_empty(), "{}: no connection to look at", namespace.name());
    match other(&sockets) {
        None => Ok(()),
        Some(line) => {
            anyhow::bail!("{}: not the congestion control {CONTROL}: {line}", namespace.name())
        }
    }
}

/// Returns the `ip -batch` commands that change these routes.
fn changes(routes: &str) -> String {
    // `linkdown` and `dead` are states of a route, not parts of it.
    let words = |line: &str| {
        let words = line.split_whitespace().filter(|word| *word != "linkdown" && *word != "dead");
        words.collect::<Vec<_>>().join(" ")
    };
    routes.lines().map(|line| format!("route change {} congctl lock {CONTROL}\n", words(line))).collect()
}

/// Returns the first socket, one per line, without [`CONTROL`] among its words.
fn other(sockets: &str) -> Option<&str> {
    sockets.lines().find(|line| !line.split_whitespace().any(|word| word == CONTROL))
}

/// Runs a program in a namespace and returns what it prints.
fn text(namespace: &Namespace, program: &str, arguments: &[&str]) -> Result<String> {
    let output = namespace
        .command(program)
        .args(arguments)
        .output()
        .with_context(|| format!("running `{program}` (package iproute2)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use ::tests::net::{End, veth};
    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;

    #[test]
    fn every_route_is_changed() {
        let routes = "default via 10.97.1.1 dev uplink \n\
                      10.97.1.0/24 dev uplink proto kernel scope link src 10.97.1.2 linkdown \n";
        let expected = "route change default via 10.97.1.1 dev uplink congctl lock cubic\n\
                        route change 10.97.1.0/24 dev uplink proto kernel scope link src 10.97.1.2 congctl lock cubic\n";
        assert_eq!(changes(routes), expected);
    }

    #[test]
    fn a_socket_with_another_control_is_seen() {
        let [right, wrong] = ["cubic", "bbr"]
            .map(|control| format!("0 0 10.97.1.2:20 10.97.2.2:80 ts sack {control} wscale:7,7 rto:201\n"));
        assert_eq!(other(&right), None);
        assert_eq!(other(""), None);
        assert_eq!(other(&format!("{right}{wrong}{right}")), Some(wrong.trim_end()));
    }

    /// Real sockets of both ends: refused with another congestion control, accepted with that of the routes.
    #[test]
    fn routes_decide_what_sockets_have() {
        ::tests::skip_without_root!();
        let [left, right] = ["client", "server"].map(|role| Namespace::new(role).unwrap());
        let near = End { namespace: &left, device: "uplink", addresses: &["10.97.1.1/24"] };
        let far = End { namespace: &right, device: "uplink", addresses: &["10.97.1.2/24"] };
        veth(near, far, 1500).unwrap();
        assert!(check(&left, true).is_err(), "no connection was looked at");
        check(&left, false).unwrap();

        let listener = right.run(|| TcpListener::bind("10.97.1.2:443")).unwrap();
        let connect = || {
            let stream = left.run(|| TcpStream::connect("10.97.1.2:443")).unwrap();
            (stream, listener.accept().unwrap().0)
        };
        // Set explicitly, as the machine's default may be `cubic`; `reno` is part of every kernel.
        let (near, far) = connect();
        for stream in [&near, &far] {
            setsockopt(stream, sockopt::TcpCongestion, &"reno".into()).unwrap();
        }
        for namespace in [&left, &right] {
            let refused = check(namespace, true).unwrap_err().to_string();
            assert!(refused.contains("reno"), "{refused}");
        }
        drop(near);
        assert_eq!((&far).read(&mut [0]).unwrap(), 0);
        drop(far);

        for namespace in [&left, &right] {
            set(namespace).unwrap();
        }
        let (near, far) = connect();
        for (namespace, stream) in [(&left, &near), (&right, &far)] {
            check(namespace, true).unwrap();
            // Locked: a socket cannot choose another.
            assert!(setsockopt(stream, sockopt::TcpCongestion, &"reno".into()).is_err());
        }
    }
}
