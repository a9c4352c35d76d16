//! The file with the last compiled state, for a boot without the API server. It does not contain settings,
//! which are in the node's own file, nor keys.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::disk::{self, DiskError};
use crate::model::{
    Affinity, BackendSpec, Desired, DesiredListener, DesiredRoute, Elsewhere, HealthCheck, ObjectName,
    Pattern, Protocol, ServerName, Settings, SourceRanges, TrafficPolicy,
};

/// The name of the file in the state folder.
pub(super) const FILE: &str = "desired";

/// The first line of the file. Any change of the format needs a new number.
const HEADING: &str = "vestibule desired state 1";
/// The first line where a route has source ranges. Versions that do not know them must not read it: they would admit everybody.
const HEADING_WITH_RANGES: &str = "vestibule desired state 2";
/// The first line where the backends of a route see their clients' addresses. Versions that do not know that would hide these.
const HEADING_WITH_LOCAL: &str = "vestibule desired state 3";

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    /// When the API server last confirmed it: seconds since 1970, UTC. Older versions did not write it.
    confirmed_secs: Option<u64>,
    listeners: Vec<SavedListener>,
    routes: Vec<SavedRoute>,
    /// Older versions did not write it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    health_checks: Vec<SavedHealthCheck>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedListener {
    name: String,
    addresses: Vec<IpAddr>,
    port: u16,
    tls: bool,
    route: Option<usize>,
}

/// The listener's index, whether the pattern is a wildcard of any depth, and the name (of a wildcard: what follows `*.`; of one
/// label: with its `*.`, as in the maps, which no name has).
type SavedPattern = (usize, bool, String);

/// Address and port, weight, and whether the probe failed.
type SavedBackend = (SocketAddr, u16, bool);

#[derive(Debug, Serialize, Deserialize)]
struct SavedRoute {
    name: String,
    /// Older versions did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    names: Vec<SavedPattern>,
    backends: Vec<SavedBackend>,
    /// Whose connections it admits; absent: anybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source_ranges: Option<Vec<IpNet>>,
    /// Whether all connections of an address reach the same backend. Older versions did not write it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_address: bool,
    /// Whether its backends are on this node, and see their clients' addresses. Older versions did not write it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    local: bool,
}

/// Port, namespace and name of the Service, route, and whether its endpoints on the node drain.
type SavedHealthCheck = (NonZeroU16, String, String, String, bool);

/// Writes the state to the folder, with the time when the API server last confirmed it.
pub(super) fn write(folder: &Path, desired: &Desired, confirmed: Option<SystemTime>) -> std::io::Result<()> {
    let confirmed = confirmed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let saved = Saved { confirmed_secs: confirmed.map(|since| since.as_secs()), ..Saved::of(desired) };
    let content = serde_json::to_vec(&saved).map_err(std::io::Error::other)?;
    let has = |is_so: fn(&DesiredRoute) -> bool| desired.routes.iter().any(|route| is_so(route));
    let heading = if has(|route| route.traffic == TrafficPolicy::Local) {
        HEADING_WITH_LOCAL
    } else if has(|route| route.source_ranges.is_some()) {
        HEADING_WITH_RANGES
    } else {
        HEADING
    };
    disk::write(&folder.join(FILE), heading, &content)
}

/// Reads the state from the folder, and adds these settings. Returns it with the time when the API server last confirmed it, if that
/// is known.
pub(super) fn read(folder: &Path, settings: &Settings) -> Result<(Desired, Option<SystemTime>), DiskError> {
    let file = folder.join(FILE);
    let mut content = disk::read(&file, HEADING);
    for heading in [HEADING_WITH_RANGES, HEADING_WITH_LOCAL] {
        if matches!(content, Err(DiskError::Version { .. })) {
            content = disk::read(&file, heading);
        }
    }
    let content = content?;
    let saved: Saved =
        serde_json::from_slice(&content).map_err(|_| DiskError::Damaged("it is not what was written"))?;
    let confirmed = saved.confirmed_secs.and_then(|secs| UNIX_EPOCH.checked_add(Duration::from_secs(secs)));
    let desired = saved.desired(settings).ok_or(DiskError::Damaged("it refers to what is not in it"))?;
    Ok((desired, confirmed))
}

impl Saved {
    fn of(desired: &Desired) -> Self {
        let listeners = desired.listeners.iter().map(|listener| SavedListener {
            name: listener.name.to_string(),
            addresses: listener.addresses.clone(),
            port: listener.port,
            tls: listener.protocol == Protocol::Tls,
            route: listener.route,
        });
        let routes = desired.routes.iter().map(|route| SavedRoute {
            name: route.name.to_string(),
            tenant: route.tenant.as_deref().map(str::to_owned),
            names: route.names.iter().map(|(listener, pattern)| saved_pattern(*listener, pattern)).collect(),
            backends: route.backends.iter().map(saved_backend).collect(),
            source_ranges: route.source_ranges.as_ref().map(|ranges| ranges.ranges().to_vec()),
            by_address: route.affinity == Affinity::ClientIp,
            local: route.traffic == TrafficPolicy::Local,
        });
        let health_checks = desired.health_checks.iter().map(|check| {
            let HealthCheck { port, service: ObjectName { namespace, name }, route, is_draining } = check;
            (*port, namespace.to_string(), name.to_string(), route.to_string(), *is_draining)
        });
        Self {
            confirmed_secs: None,
            listeners: listeners.collect(),
            routes: routes.collect(),
            health_checks: health_checks.collect(),
        }
    }

    /// Returns `None` if an index is out of range or a name is invalid.
    fn desired(self, settings: &Settings) -> Option<Desired> {
        let (listener_count, route_count) = (self.listeners.len(), self.routes.len());
        let listeners = self.listeners.into_iter().map(|saved| {
            (saved.route.is_none_or(|route| route < route_count)).then(|| DesiredListener {
                name: saved.name.into(),
                addresses: saved.addresses,
                port: saved.port,
                protocol: if saved.tls { Protocol::Tls } else { Protocol::Tcp },
                route: saved.route,
            })
        });
        let routes = self.routes.into_iter().map(|saved| {
            let names = saved.names.into_iter().map(|saved| pattern(saved, listener_count));
            Some(Arc::new(DesiredRoute {
                name: Arc::from(saved.name),
                names: names.collect::<Option<_>>()?,
                backends: saved.backends.into_iter().map(backend).collect(),
                tenant: saved.tenant.map(Arc::from),
                source_ranges: saved.source_ranges.map(|ranges| SourceRanges::new(&ranges)),
                affinity: if saved.by_address { Affinity::ClientIp } else { Affinity::None },
                traffic: if saved.local { TrafficPolicy::Local } else { TrafficPolicy::Cluster },
                // Not known without the API server: a node without backends leaves clients to others.
                elsewhere: saved.local.then(|| Arc::new(Elsewhere::unknown())),
            }))
        });
        let health_checks = self.health_checks.into_iter().filter(|_| settings.serves_health_checks);
        Some(Desired {
            settings: settings.clone(),
            listeners: listeners.collect::<Option<_>>()?,
            routes: routes.collect::<Option<_>>()?,
            health_checks: health_checks.map(health_check).collect(),
        })
    }
}

fn saved_pattern(listener: usize, pattern: &Pattern) -> SavedPattern {
    match pattern {
        Pattern::Exact(name) => (listener, false, name.to_string()),
        Pattern::OneLabel(suffix) => (listener, false, format!("*.{suffix}")),
        Pattern::Wildcard(suffix) => (listener, true, suffix.to_string()),
    }
}

fn pattern((listener, wildcard, name): SavedPattern, listeners: usize) -> Option<(usize, Pattern)> {
    let (kind, name): (fn(ServerName) -> Pattern, _) = match name.strip_prefix("*.") {
        Some(suffix) if !wildcard => (Pattern::OneLabel, suffix),
        _ if wildcard => (Pattern::Wildcard, &*name),
        _ => (Pattern::Exact, &*name),
    };
    let name = ServerName::new(name).ok().filter(|_| listener < listeners)?;
    Some((listener, kind(name)))
}

fn health_check((port, namespace, name, route, is_draining): SavedHealthCheck) -> HealthCheck {
    let service = ObjectName { namespace: namespace.into(), name: name.into() };
    HealthCheck { port, service, route: route.into(), is_draining }
}

fn saved_backend(backend: &BackendSpec) -> SavedBackend {
    (SocketAddr::new(backend.address, backend.port), backend.weight, backend.failing)
}

fn backend((socket, weight, failing): SavedBackend) -> BackendSpec {
    BackendSpec { address: socket.ip(), port: socket.port(), weight, failing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired() -> Desired {
        let name = |text| ServerName::new(text).unwrap();
        let backend = |address: &str, weight| BackendSpec {
            address: address.parse().unwrap(),
            port: 6443,
            weight,
            failing: weight == 0,
        };
        Desired {
            settings: Settings { max_names: 77, ..Settings::default() },
            listeners: vec![
                DesiredListener {
                    name: "192.0.2.1:443".into(),
                    addresses: vec![IpAddr::from([192, 0, 2, 1])],
                    port: 443,
                    protocol: Protocol::Tls,
                    route: None,
                },
                DesiredListener {
                    name: "[2001:db8::1]:5432".into(),
                    addresses: vec!["2001:db8::1".parse().unwrap()],
                    port: 5432,
                    protocol: Protocol::Tcp,
                    route: Some(0),
                },
            ],
            routes: [Arc::new(DesiredRoute {
                name: "tlsroute/a/b".into(),
                names: [
                    (0, Pattern::Exact(name("a.example"))),
                    (0, Pattern::Wildcard(name("b.example"))),
                    (0, Pattern::OneLabel(name("b.example"))),
                ]
                .into(),
                backends: [backend("10.0.0.1", 1), backend("fd00::1", 0)].into(),
                tenant: Some("a".into()),
                ..DesiredRoute::default()
            })]
            .into_iter()
            .collect(),
            health_checks: Arc::default(),
        }
    }

    #[test]
    fn health_checks_are_saved_and_come_back_where_nodes_answer_them() {
        let folder = std::env::temp_dir().join(format!("vestibule-saved-checks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let check = HealthCheck {
            port: NonZeroU16::new(30_001).unwrap(),
            service: ObjectName { namespace: "a".into(), name: "b".into() },
            route: "tlsroute/a/b".into(),
            is_draining: true,
        };
        write(&folder, &Desired { health_checks: [check.clone()].into(), ..desired() }, None).unwrap();
        for (serves_health_checks, expected) in [(true, &[check][..]), (false, &[])] {
            let settings = Settings { serves_health_checks, ..Settings::default() };
            assert_eq!(*read(&folder, &settings).unwrap().0.health_checks, *expected);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_saved_comes_back_with_the_settings_of_today() {
        let folder = std::env::temp_dir().join(format!("vestibule-saved-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let before = desired();
        let confirmed = UNIX_EPOCH + Duration::from_secs(1_795_737_600);
        write(&folder, &before, Some(confirmed)).unwrap();
        let settings = Settings { max_names: 78, ..Settings::default() };
        let after = Desired { settings: settings.clone(), ..before.clone() };
        assert_eq!(read(&folder, &settings).unwrap(), (after.clone(), Some(confirmed)));
        // Versions without source ranges do not read a file that has some.
        let mut limited = before.clone();
        let mut route = DesiredRoute::clone(&limited.routes[0]);
        route.affinity = Affinity::ClientIp;
        route.source_ranges = Some(SourceRanges::new(&["10.0.0.0/8".parse().unwrap()]));
        limited.routes = [Arc::new(route)].into_iter().collect();
        write(&folder, &limited, None).unwrap();
        assert!(disk::read(&folder.join(FILE), HEADING).is_err());
        let limited = Desired { settings: settings.clone(), ..limited };
        assert_eq!(read(&folder, &settings).unwrap(), (limited.clone(), None));
        // Versions that would hide clients from the backends of this node do not read it either.
        let mut local = limited;
        let mut route = DesiredRoute::clone(&local.routes[0]);
        route.traffic = TrafficPolicy::Local;
        route.elsewhere = Some(Arc::new(Elsewhere::unknown()));
        local.routes = [Arc::new(route)].into_iter().collect();
        write(&folder, &local, None).unwrap();
        assert!(
            [HEADING, HEADING_WITH_RANGES].iter().all(|old| disk::read(&folder.join(FILE), old).is_err())
        );
        assert_eq!(read(&folder, &settings).unwrap(), (local, None));
        // As versions without a time wrote it.
        let mut old = serde_json::to_value(Saved::of(&after)).unwrap();
        old.as_object_mut().unwrap().remove("confirmed_secs").unwrap();
        disk::write(&folder.join(FILE), HEADING, &serde_json::to_vec(&old).unwrap()).unwrap();
        assert_eq!(read(&folder, &settings).unwrap(), (after, None));
        disk::write(&folder.join(FILE), HEADING, b"{\"listeners\":[]}").unwrap();
        assert!(matches!(read(&folder, &Settings::default()), Err(DiskError::Damaged(_))));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_leads_nowhere_or_is_no_name_is_refused() {
        let refused = |change: fn(&mut Saved)| {
            let mut saved = Saved::of(&desired());
            change(&mut saved);
            saved.desired(&Settings::default()).is_none()
        };
        assert!(!refused(|_| {}));
        assert!(refused(|saved| saved.listeners[1].route = Some(1)));
        assert!(refused(|saved| saved.routes[0].names[0].0 = 2));
        assert!(refused(|saved| saved.routes[0].names[0].2 = "a..b".into()));
        assert!(refused(|saved| saved.routes[0].names[1].2 = "*.b".into()));
        assert!(refused(|saved| saved.routes[0].names[2].2 = "*.*.b".into()));
    }
}
