//! Many Services of type LoadBalancer and of our class. All are in one namespace, which the controller gives few of its lanes for writes:
//! those of many namespaces are not slower.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::{ApiServer, Connection, Rest};

/// Where their addresses are from, for the chart's `addresses.ranges`: room for 4,000.
pub const RANGE: &str = "198.18.0.0/20";
/// The namespace, and addresses for them within the cluster: the API server's own range has 254.
const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: many}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: many}
spec: {cidrs: [10.112.0.0/20]}
";
/// Where they are in the API.
pub const SERVICES: &str = "/api/v1/namespaces/many/services";
/// The number of connections over which they are created.
const HANDS: usize = 4;
/// From one look at all Services to the next. Each costs the API server some milliseconds of CPU.
const LOOK: Duration = Duration::from_millis(200);

/// When what was created has its addresses, and which these are.
#[derive(Debug)]
pub struct Served {
    /// From the start until the last Service was created.
    pub created: Duration,
    /// From the start until a look found an address in the status of every Service: at most 0.2 s later than it was there, and what
    /// the look takes.
    pub took: Duration,
    /// The address of each, by the Service's name.
    pub addresses: BTreeMap<String, IpAddr>,
}

/// This many Services.
#[derive(Clone, Debug)]
pub struct Balancers {
    rest: Rest,
    count: usize,
    annotations: Value,
}

impl Balancers {
    /// Creates their namespace, and none of them yet. `annotations`: an object of strings, which each gets.
    pub fn new(server: &ApiServer, count: usize, annotations: Value) -> Result<Self> {
        server.kubectl().apply(OBJECTS)?;
        Ok(Self { rest: server.rest().clone(), count, annotations })
    }

    /// Creates all of them. Returns how long it took.
    pub fn create(&self) -> Result<Duration> {
        let begun = Instant::now();
        std::thread::scope(|threads| {
            let hands: Vec<_> =
                (0..HANDS).map(|hand| threads.spawn(move || self.create_every(hand))).collect();
            hands.into_iter().try_for_each(|hand| hand.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        Ok(begun.elapsed())
    }

    fn create_every(&self, hand: usize) -> Result<()> {
        let mut api = self.rest.connect()?;
        (hand..self.count).step_by(HANDS).try_for_each(|number| {
            let name = format!("s{number:04}");
            api.create(SERVICES, &self.manifest(&name)).map(drop)
        })
    }

    fn manifest(&self, name: &str) -> Value {
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "vestibule.dev/lb",
            "allocateLoadBalancerNodePorts": false, "ports": [{"port": 443, "protocol": "TCP"}]});
        let metadata = json!({"name": name, "annotations": self.annotations});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    }

    /// Creates all of them, and waits until each has its address. Fails when this time has passed since.
    pub fn serve(&self, patience: Duration) -> Result<Served> {
        let begun = Instant::now();
        let created = self.create()?;
        let addresses = self.addresses(begun, patience)?;
        Ok(Served { created, took: begun.elapsed(), addresses })
    }

    /// Waits until each has its address, and returns these by name. Fails this time after `begun`.
    pub fn addresses(&self, begun: Instant, patience: Duration) -> Result<BTreeMap<String, IpAddr>> {
        let mut api = self.rest.connect()?;
        loop {
            let addresses = addresses(&mut api)?;
            if addresses.len() == self.count {
                return Ok(addresses);
            }
            let late = begun.elapsed();
            ensure!(
                late < patience,
                "{} of {} Services have an address after {late:?}",
                addresses.len(),
                self.count
            );
            std::thread::sleep(LOOK);
        }
    }
}

/// Returns the addresses of the Services that have one.
fn addresses(api: &mut Connection) -> Result<BTreeMap<String, IpAddr>> {
    let services = api.read(SERVICES)?;
    let services = services["items"].as_array().context("a list of Services")?.iter();
    let mut addresses = BTreeMap::new();
    for service in services {
        let Some(ip) = service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str() else { continue };
        let name = service["metadata"]["name"].as_str().context("a Service's name")?;
        addresses.insert(name.to_owned(), ip.parse().with_context(|| format!("the address of {name}"))?);
    }
    Ok(addresses)
}
