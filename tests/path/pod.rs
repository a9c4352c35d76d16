//! A pod of the node: a namespace behind a pair of devices, whose packets the node's stack forwards.

use tests::addresses::{FAMILIES, host};
use tests::net::{End, Namespace, veth};
use tests::topology::UPLINK;

/// The pod's network.
pub(crate) const POD_NET: u8 = 9;

/// Makes a pod, with a default route by the node, on whose device `pod` it is.
pub(crate) fn behind(node: &Namespace, mtu: u16) -> Namespace {
    let pod = Namespace::new("pod").unwrap();
    let [ours, theirs] = [1, 2].map(|number| {
        FAMILIES.map(|family| {
            format!("{}/{}", host(family, POD_NET, number), if family.is_v4() { 24 } else { 64 })
        })
    });
    let near = End { namespace: node, device: "pod", addresses: &ours.each_ref().map(String::as_str) };
    let far = End { namespace: &pod, device: UPLINK, addresses: &theirs.each_ref().map(String::as_str) };
    veth(near, far, mtu).unwrap();
    for family in FAMILIES {
        pod.ip(&format!("route add default via {}\n", host(family, POD_NET, 1))).unwrap();
    }
    pod
}
