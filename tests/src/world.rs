//! The small network around programs under test: a node with one device towards clients and one towards
//! backends.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::addresses::{BACKENDS, CLIENT, CLIENT_NET, FAMILIES, TENANT_NETS, balancer, client, host};
use crate::net::{End, Namespace, veth};
use crate::packet::ETHERNET_BYTES;
use crate::tap::Tap;

/// The programs look up a next hop again after this long at the latest: they remember it for up to 134 ms.
pub const HOP_AGE: Duration = Duration::from_millis(140);

/// A device of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// Towards clients: network 1, and the default route.
    Client,
    /// Towards the backends of tenant a: network 2.
    Backend,
}

/// Both devices.
pub const DEVICES: [Device; 2] = [Device::Client, Device::Backend];

impl Device {
    /// Its name on the node; the far end's name has `-far` appended.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
        }
    }

    const fn net(self) -> u8 {
        match self {
            Self::Client => CLIENT_NET,
            Self::Backend => TENANT_NETS[0],
        }
    }

    /// MAC of the node's end.
    pub const fn near_mac(self) -> [u8; 6] {
        [2, 0, 0, 0, self.net(), 1]
    }

    /// MAC of the far end, and so of every host beyond the device.
    pub const fn far_mac(self) -> [u8; 6] {
        [2, 0, 0, 0, self.net(), 2]
    }
}

/// Two namespaces connected by two veth pairs, or one namespace with two TAP devices. Neighbours are static,
/// so that no address has to be resolved.
#[derive(Debug)]
pub struct World {
    taps: Vec<(Device, Tap)>,
    ifindexes: [u32; 2],
    /// The namespace in which the programs run.
    pub node: Namespace,
    /// The far ends of veth pairs.
    pub outside: Namespace,
}

impl World {
    /// Runs `ip` commands on the node, or anything else that changes a next hop, and waits until the programs
    /// see it.
    pub fn change(&self, with: impl FnOnce(&Namespace) -> Result<()>) -> Result<()> {
        with(&self.node)?;
        std::thread::sleep(HOP_AGE);
        Ok(())
    }

    pub fn new() -> Result<Self> {
        Self::with(|node, outside, device| {
            link(node, outside, device)?;
            Tap::open(outside, &far(device))
        })
    }

    /// Creates a world with TAP devices: when [`Self::send`] returns, a frame has been processed and any
    /// output sent.
    pub fn tapped() -> Result<Self> {
        Self::with(|node, _, device| {
            let tap = Tap::create(node, device.name())?;
            let mut batch = format!("link set {} address {}\n", device.name(), mac(device.near_mac()));
            for address in addresses(device) {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                batch.push_str(&format!("addr add {address} dev {}{nodad}\n", device.name()));
            }
            batch.push_str(&format!("link set {} up\n", device.name()));
            node.ip(&batch)?;
            Ok(tap)
        })
    }

    fn with(link: impl Fn(&Namespace, &Namespace, Device) -> Result<Tap>) -> Result<Self> {
        let node = Namespace::new("node")?;
        let outside = Namespace::new("outside")?;
        // The far ends only listen: no addresses, and no IPv6.
        outside.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        outside.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        node.forward()?;
        let mut taps = Vec::new();
        for device in DEVICES {
            taps.push((device, link(&node, &outside, device)?));
            neighbours(&node, device)?;
        }
        node.ip(&FAMILIES.map(|family| format!("route add default via {}\n", client(family))).concat())?;
        let ifindexes = [node.ifindex(Device::Client.name())?, node.ifindex(Device::Backend.name())?];
        let world = Self { node, outside, taps, ifindexes };
        world.drain();
        Ok(world)
    }

    /// Sends a frame into a device from its far end.
    pub fn send(&self, device: Device, frame: &[u8]) -> io::Result<()> {
        self.taps[device as usize].1.send(frame)
    }

    /// The interface index of a device on the node.
    pub fn ifindex(&self, device: Device) -> u32 {
        self.ifindexes[device as usize]
    }

    /// Returns the frames that reached the far ends since the last call, without the kernel's own neighbour
    /// and multicast traffic.
    pub fn drain(&self) -> Vec<(Device, Vec<u8>)> {
        self.receive(0)
    }

    /// Same as [`Self::drain`], but waits up to two seconds until `sent` frames have arrived: the kernel
    /// delivers 64 in a row, and the others later.
    pub fn receive(&self, sent: u64) -> Vec<(Device, Vec<u8>)> {
        let mut all: Vec<Vec<Vec<u8>>> = self.taps.iter().map(|_| Vec::new()).collect();
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            for ((_, tap), frames) in self.taps.iter().zip(&mut all) {
                frames.extend(tap.drain().unwrap_or_else(|error| panic!("reading the far ends: {error}")));
            }
            let arrived: usize = all.iter().map(Vec::len).sum();
            if arrived as u64 >= sent || Instant::now() > deadline {
                break;
            }
            std::thread::yield_now();
        }
        let devices = self.taps.iter().map(|(device, _)| *device);
        devices
            .zip(all)
            .flat_map(|(device, frames)| frames.into_iter().map(move |frame| (device, frame)))
            .filter(|(_, frame)| !kernel_talk(frame))
            .collect()
    }
}

/// Returns the number of frames that the node's devices have sent so far. Must be called inside the node.
pub(crate) fn sent_inside() -> io::Result<u64> {
    // Each line: name, colon, eight receive counters, then the transmit counters; packets sent is the second.
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let ours = |name: &str| DEVICES.iter().any(|device| device.name() == name);
    Ok(table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| ours(name.trim()))
        .filter_map(|(_, counters)| counters.split_whitespace().nth(9)?.parse::<u64>().ok())
        .sum())
}

fn far(device: Device) -> String {
    format!("{}-far", device.name())
}

fn addresses(device: Device) -> [String; 2] {
    FAMILIES
        .map(|family| format!("{}/{}", balancer(family, device.net()), if family.is_v4() { 24 } else { 64 }))
}

fn link(node: &Namespace, outside: &Namespace, device: Device) -> Result<()> {
    let addresses = addresses(device);
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (near, far) = (device.name(), far(device));
    veth(
        End { namespace: node, device: near, addresses: &addresses },
        End { namespace: outside, device: &far, addresses: &[] },
        1500,
    )?;
    node.ip(&format!("link set {near} address {}\n", mac(device.near_mac())))?;
    outside.ip(&format!("link set {far} address {}\n", mac(device.far_mac())))
}

/// Adds permanent neighbour entries for every host beyond the device.
fn neighbours(node: &Namespace, device: Device) -> Result<()> {
    let hosts: &[u8] = if device == Device::Client { &[CLIENT] } else { &BACKENDS };
    let mut batch = String::new();
    for family in FAMILIES {
        for number in hosts {
            let address = host(family, device.net(), *number);
            batch.push_str(&format!(
                "neigh replace {address} lladdr {} dev {} nud permanent\n",
                mac(device.far_mac()),
                device.name()
            ));
        }
    }
    node.ip(&batch)
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// Whether a frame is ARP, ICMPv6 neighbour discovery or a multicast listener report (with or without a
/// hop-by-hop header).
pub(crate) fn kernel_talk(frame: &[u8]) -> bool {
    match frame.get(12..ETHERNET_BYTES) {
        Some([0x08, 0x06]) => true,
        Some([0x86, 0xdd]) => match frame.get(ETHERNET_BYTES + 6) {
            Some(0) => true,
            Some(58) => frame.get(ETHERNET_BYTES + 40).is_some_and(|kind| (130..=143).contains(kind)),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::{Family, backend};

    #[test]
    fn what_the_node_sends_arrives_at_the_far_end() {
        crate::skip_without_root!();
        let world = World::new().unwrap();
        for family in FAMILIES {
            let to = backend(family, 0, 1);
            world.node.run(|| {
                let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
                std::net::UdpSocket::bind(any).unwrap().send_to(b"hello", (to, 9)).unwrap();
            });
            let seen = world.drain();
            assert_eq!(seen.len(), 1, "{seen:02x?}");
            assert_eq!(seen[0].0, Device::Backend);
            assert_eq!(seen[0].1[..12], [Device::Backend.far_mac(), Device::Backend.near_mac()].concat());
            assert!(seen[0].1.ends_with(b"hello"));
        }
    }
}
