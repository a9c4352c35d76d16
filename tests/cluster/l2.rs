//! Addresses on the nodes' own segment: one node answers for each, and neither load nor an API server that is off moves it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, available_parallelism, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tests::cluster::{Cluster, Node};
use tests::daemon::binary;

use crate::asker::{Asked, Asker};
use crate::scene::{PATIENCE, RELEASE, Tenant, install};
use crate::traffic::{HELD, Target, Traffic};

/// Addresses of a Gateway and of a Service, on the nodes' segment.
const GATEWAY: [&str; 2] = ["10.77.0.200", "fd77::c8"];
const SERVICE: [&str; 2] = ["10.77.0.201", "fd77::c9"];

/// How long all processors are busy, and how long the API server is off, longer than Leases live; with `VESTIBULE_SOAK=1`, the second ones.
const LOAD: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30 * 60)];
const OUTAGE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(10 * 60)];
/// Threads that never wait, for each processor.
const BUSY: usize = 4;
/// The time in which nodes and controllers find the API server again, and would act on what has expired meanwhile.
const RETURN: Duration = Duration::from_secs(3);
/// The longest time that an address goes unanswered when its node fails, on a busy machine.
const FAILOVER: Duration = Duration::from_secs(5);

const BALANCED: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: balanced, annotations: {vestibule.dev/addresses: "@addresses@"}}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  ipFamilyPolicy: RequireDualStack
  selector: {app: tenant}
  ports: [{port: 6443, targetPort: 8443}]
"#;

/// Which node announces an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) node: String,
    /// It rises with each node that takes the address over.
    epoch: u64,
    pub(crate) link: String,
}

/// Waits until one node announces each address, and says by which epoch.
pub(crate) fn settled(cluster: &Cluster, addresses: &[&str]) -> Result<BTreeMap<IpAddr, Owner>> {
    let begun = Instant::now();
    loop {
        let owners = owners(cluster, addresses)?;
        if owners.values().all(|owners| owners.len() == 1) {
            return Ok(owners
                .into_iter()
                .filter_map(|(address, mut owners)| Some((address, owners.pop()?)))
                .collect());
        }
        ensure!(begun.elapsed() < PATIENCE, "not one node announces each: {owners:?}");
        sleep(Duration::from_millis(100));
    }
}

/// Returns the nodes that announce each address, as their maps say.
fn owners(cluster: &Cluster, addresses: &[&str]) -> Result<BTreeMap<IpAddr, Vec<Owner>>> {
    let mut owners = BTreeMap::new();
    for address in addresses {
        owners.insert(address.parse().context("an address")?, Vec::new());
    }
    for node in cluster.nodes().into_iter().filter(Node::is_on) {
        for line in vips(&node)? {
            let address = line["address"].as_str().context("an address")?.parse()?;
            // What no other node may announce has no epoch.
            if let (Some(owners), "this node", Some(epoch)) =
                (owners.get_mut(&address), line["owner"].as_str().unwrap_or_default(), line["epoch"].as_u64())
            {
                let link = line["linkAddress"].as_str().context("a link address")?.to_owned();
                owners.push(Owner { node: node.name(), epoch, link });
            }
        }
    }
    Ok(owners)
}

/// Runs `vestibule vips` on a node. It needs no API server.
fn vips(node: &Node<'_>) -> Result<Vec<Value>> {
    let binary = binary()?;
    let text = node.run(&[&binary.to_string_lossy(), "vips", "--output", "json"])?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Returns the link address that the router, a host of the segment like any other, has for an address.
pub(crate) fn neighbour(cluster: &Cluster, address: &IpAddr) -> Result<Option<String>> {
    let output = cluster.router("ip").args(["-j", "neigh", "show", "dev", "br0"]).output()?;
    let entries: Value = serde_json::from_slice(&output.stdout)?;
    let address = address.to_string();
    let mut entries = entries.as_array().into_iter().flatten();
    let entry = entries.find(|entry| entry["dst"] == *address);
    Ok(entry.and_then(|entry| entry["lladdr"].as_str()).map(str::to_owned))
}

/// Asserts that each address was answered all the time, by its owner alone.
pub(crate) fn assert_unmoved(asked: &Asked, owners: &BTreeMap<IpAddr, Owner>) {
    for (address, owner) in owners {
        let links = asked.links(address);
        assert_eq!(links, [owner.link.clone()].into(), "{address} is of {owner:?}");
        let silence = asked.silence(address);
        assert!(silence < Duration::from_secs(2), "{address} was not answered for {silence:?}");
    }
}

/// Threads that never wait.
struct Busy {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let count = BUSY * available_parallelism().map_or(1, usize::from);
        let threads = (0..count).map(|_| {
            let ends = Arc::clone(&ends);
            spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        Self { threads: threads.collect(), ends }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// The short time, or the long one.
fn time([short, long]: [Duration; 2]) -> Duration {
    let is_soaked = std::env::var_os("VESTIBULE_SOAK").is_some_and(|value| value == "1");
    if is_soaked { long } else { short }
}

/// Connects until a pod has answered at each address. Some of the pods that nodes know may be on a node that is off.
fn meet(cluster: &Cluster, tenant: &Tenant) -> Result<()> {
    for (addresses, port) in [(GATEWAY, 443), (SERVICE, 6443)] {
        for address in addresses {
            let address = SocketAddr::new(address.parse()?, port);
            let target = Target { address, ..tenant.target.clone() };
            let begun = Instant::now();
            while let Err(error) = cluster.at_client(|| target.meet(1))? {
                if begun.elapsed() > PATIENCE {
                    bail!("nobody answers at {address}: {error:#}");
                }
            }
        }
    }
    Ok(())
}

/// The agent's pod of a node says of its addresses what the node's maps say.
fn assert_shown(cluster: &Cluster, owners: &BTreeMap<IpAddr, Owner>) {
    let kubectl = cluster.kubectl();
    for (address, owner) in owners {
        let state = kubectl.get(&["nodestate", &owner.node]).unwrap();
        let pod = state["spec"]["pod"].as_str().unwrap();
        let shown = kubectl.run(&["-n", RELEASE, "exec", pod, "--", "vestibule", "vips"]).unwrap();
        let address = address.to_string();
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(&*address));
        assert!(line.is_some_and(|line| line.contains("this node") && line.contains(&owner.link)), "{shown}");
    }
}

#[test]
fn neither_load_nor_an_api_server_that_is_off_moves_an_address_and_a_node_that_fails_then_hands_over_its_own()
{
    let cluster = Cluster::alone().unwrap();
    install(&cluster);
    let tenant = Tenant::at(&cluster, "segment", &GATEWAY).unwrap();
    tenant.namespace.apply(&BALANCED.replace("@addresses@", &SERVICE.join(","))).unwrap();
    let all = [GATEWAY, SERVICE].concat();
    let before = settled(&cluster, &all).unwrap();
    assert_shown(&cluster, &before);
    meet(&cluster, &tenant).unwrap();

    let asker = Asker::start(&cluster, before.keys()).unwrap();
    let traffic = Traffic::start(&cluster, &tenant.target).unwrap();
    let busy = Busy::start();
    sleep(time(LOAD));
    drop(busy);
    cluster.stop_api_server().unwrap();
    sleep(time(OUTAGE));
    assert!(cluster.kubectl().get(&["nodes"]).is_err(), "the API server is not off");
    assert_eq!(settled(&cluster, &all).unwrap(), before);
    cluster.start_api_server().unwrap();
    sleep(RETURN);
    assert_eq!(settled(&cluster, &all).unwrap(), before);
    let gateway = GATEWAY[0].parse().unwrap();
    assert_eq!(neighbour(&cluster, &gateway).unwrap().as_ref(), Some(&before[&gateway].link));
    assert_unmoved(&asker.end().unwrap(), &before);
    let outcome = traffic.end();
    assert_eq!(outcome.failed, [] as [String; 0]);
    assert!(outcome.ended.is_empty(), "{:?}", outcome.ended);
    assert_eq!(outcome.held.len(), HELD);

    a_node_fails(&cluster, &tenant, &before);
}

/// While the API server is off, the node of the Gateway's first address fails. It takes nothing back when it returns.
fn a_node_fails(cluster: &Cluster, tenant: &Tenant, before: &BTreeMap<IpAddr, Owner>) {
    let all = [GATEWAY, SERVICE].concat();
    let failed = before[&GATEWAY[0].parse().unwrap()].node.clone();
    let node = cluster.nodes().into_iter().find(|node| node.name() == failed).unwrap();
    cluster.stop_api_server().unwrap();
    let asker = Asker::start(cluster, before.keys()).unwrap();
    node.kill().unwrap();
    let after = settled(cluster, &all).unwrap();
    meet(cluster, tenant).unwrap();
    let asked = asker.end().unwrap();
    for (address, owner) in before {
        let now = &after[address];
        match owner.node == failed {
            false => assert_eq!(now, owner, "{address} did not have to move"),
            true => {
                assert!(now.epoch > owner.epoch, "{address}: {owner:?}, then {now:?}");
                assert_eq!(asked.turns(address), [&*owner.link, &*now.link], "{address}");
                let silence = asked.silence(address);
                assert!(silence < FAILOVER, "{address} was not answered for {silence:?}");
                println!("{address}: from {failed} to {} within {silence:?}", now.node);
            }
        }
    }
    let asker = Asker::start(cluster, after.keys()).unwrap();
    cluster.start_api_server().unwrap();
    node.start().unwrap();
    node.wait_ready(true).unwrap();
    let begun = Instant::now();
    while !vips(&node).is_ok_and(|lines| lines.len() >= all.len()) {
        assert!(begun.elapsed() < PATIENCE, "{failed} has no agent");
        sleep(Duration::from_millis(200));
    }
    assert_eq!(settled(cluster, &all).unwrap(), after);
    assert_unmoved(&asker.end().unwrap(), &after);
}
