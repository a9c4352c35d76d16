//! Addresses of API servers, to which nothing on the node may be led elsewhere: the agent itself would not reach them any more. And the
//! file with them, for a start before one answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use super::disk::{self, DiskError};
use crate::model::ObjectName;
use crate::model::cluster::Endpoint;

/// The Service of the API server itself: its endpoints are what each API server says of itself.
const SERVICE: (&str, &str) = ("default", "kubernetes");

/// The limit for a name server's answer.
const LOOK_UP: Duration = Duration::from_secs(2);

/// The name of the file in the state folder.
const FILE: &str = "api-servers";

/// The first line of the file. Any change of the format needs a new number.
const HEADING: &str = "vestibule api servers 1";

/// Returns the addresses of the host that a kubeconfig or the pod's environment names, as in a URL; none where its name is not resolved
/// now.
pub(super) async fn named(host: &str) -> BTreeSet<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return [address.to_canonical()].into();
    }
    match timeout(LOOK_UP, lookup_host((host, 0))).await {
        Ok(Ok(found)) => found.map(|at| at.ip().to_canonical()).collect(),
        _ => BTreeSet::new(),
    }
}

/// Returns the endpoints of the API servers' own Service.
pub(super) fn endpoints(of: &BTreeMap<ObjectName, Arc<[Endpoint]>>) -> BTreeSet<IpAddr> {
    let (namespace, name) = SERVICE;
    let endpoints = of.get(&ObjectName::new(namespace, name)).into_iter().flat_map(|them| them.iter());
    endpoints.map(|endpoint| endpoint.address).collect()
}

/// Writes addresses to the folder.
pub(super) fn write(folder: &Path, addresses: &BTreeSet<IpAddr>) -> std::io::Result<()> {
    let content = serde_json::to_vec(addresses).map_err(std::io::Error::other)?;
    disk::write(&folder.join(FILE), HEADING, &content)
}

/// Reads them from the folder.
pub(super) fn read(folder: &Path) -> Result<BTreeSet<IpAddr>, DiskError> {
    let content = disk::read(&folder.join(FILE), HEADING)?;
    serde_json::from_slice(&content).map_err(|_| DiskError::Damaged("it is not what was written"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::EndpointState;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_configured_host_is_an_address_or_a_name() {
        for host in ["192.0.2.1", "[2001:db8::1]", "2001:db8::1"] {
            assert_eq!(named(host).await, [address(host.trim_matches(['[', ']']))].into());
        }
        assert_eq!(named("::ffff:192.0.2.1").await, [address("192.0.2.1")].into());
        assert!(named("localhost").await.iter().all(IpAddr::is_loopback));
        assert!(!named("localhost").await.is_empty() && named("no.such.name.invalid").await.is_empty());
    }

    #[test]
    fn no_other_services_endpoints_count() {
        let endpoint = |last: u8| Endpoint {
            port_name: "https".into(),
            address: [192, 0, 2, last].into(),
            port: 6443,
            state: EndpointState::Ready,
            zones: Arc::default(),
            node: None,
        };
        let of = [
            (ObjectName::new("default", "kubernetes"), [endpoint(1), endpoint(2)].into()),
            (ObjectName::new("tenant", "kubernetes"), [endpoint(3)].into()),
            (ObjectName::new("default", "other"), [endpoint(4)].into()),
        ];
        assert_eq!(endpoints(&of.into()), [address("192.0.2.1"), address("192.0.2.2")].into());
        assert!(endpoints(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn what_is_saved_comes_back_and_what_is_damaged_does_not() {
        let folder = std::env::temp_dir().join(format!("vestibule-api-servers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(matches!(read(&folder), Err(DiskError::Missing)));
        let addresses = ["192.0.2.1", "2001:db8::1"].map(address).into();
        write(&folder, &addresses).unwrap();
        assert_eq!(read(&folder).unwrap(), addresses);
        disk::write(&folder.join(FILE), HEADING, b"{}").unwrap();
        assert!(matches!(read(&folder), Err(DiskError::Damaged(_))));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
