//! Reads forwarding and port ranges from `/proc/sys/net`, in the calling thread's network namespace.

use std::fs;
use std::io;

/// The kernel would not forward packets.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel does not forward {family} on device {device}, so no packet would reach a backend; \
     `sysctl -w {setting}=1`"
)]
pub struct ForwardingOff {
    family: &'static str,
    device: String,
    setting: &'static str,
}

/// Checks that the kernel forwards on a device. The programs query the next hop of each packet as a router
/// would (`bpf_fib_lookup`), which fails if forwarding is off.
pub fn forwarding(device: &str, v4: bool, v6: bool) -> Result<(), ForwardingOff> {
    let families =
        [(v4, "IPv4", "ipv4", "net.ipv4.ip_forward"), (v6, "IPv6", "ipv6", "net.ipv6.conf.all.forwarding")];
    for (used, family, folder, setting) in families {
        let text = fs::read_to_string(format!("/proc/sys/net/{folder}/conf/{device}/forwarding"));
        // A device that has just disappeared, or a kernel without the family, is handled elsewhere.
        if used && text.is_ok_and(|text| text.trim() == "0") {
            return Err(ForwardingOff { family, device: device.into(), setting });
        }
    }
    Ok(())
}

/// Has the kernel forward IPv4 and IPv6 on a device, those of them that are used, where it does not. Returns whether it did not. A
/// family that it cannot be switched on for does not hold back the other; in a container without privileges these files cannot be written.
pub fn forward(device: &str, [v4, v6]: [bool; 2]) -> io::Result<bool> {
    let on = |(used, folder): (bool, &str)| {
        let path = format!("/proc/sys/net/{folder}/conf/{device}/forwarding");
        match fs::read_to_string(&path) {
            Ok(text) if used && text.trim() == "0" => fs::write(&path, "1").map(|()| true),
            // A kernel without the family.
            _ => Ok(false),
        }
    };
    let (v4, v6) = (on((v4, "ipv4")), on((v6, "ipv6")));
    Ok(v4? | v6?)
}

/// Returns the first and last port that the kernel assigns to its own sockets.
pub fn local_port_range() -> Option<(u16, u16)> {
    port_range(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?)
}

fn port_range(text: &str) -> Option<(u16, u16)> {
    let mut ports = text.split_whitespace().map(str::parse);
    Some((ports.next()?.ok()?, ports.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_range_is_two_numbers() {
        assert_eq!(port_range("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(port_range("32768"), None);
        assert_eq!(port_range(""), None);
        assert!(local_port_range().is_some());
    }

    #[test]
    fn the_remedy_is_a_command() {
        let off = ForwardingOff { family: "IPv4", device: "eth0".into(), setting: "net.ipv4.ip_forward" };
        assert!(off.to_string().ends_with("`sysctl -w net.ipv4.ip_forward=1`"));
        assert_eq!(forwarding("no-such-device", true, true), Ok(()));
        assert!(!forward("no-such-device", [true, true]).unwrap());
    }
}
