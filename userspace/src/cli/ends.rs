//! Flags that choose connections by their ends.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// An address, of every port or of one.
pub(super) type End = (IpAddr, Option<u16>);

/// Reads a network or a single address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let single = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse::<IpNet>()
        .map(|net| net.trunc())
        .or_else(|_| single())
        .map_err(|_| "an address or a network: 192.0.2.7, 192.0.2.0/24, 2001:db8::/64".into())
}

/// Reads an address with or without a port.
pub(super) fn end(text: &str) -> Result<End, String> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok((socket.ip(), Some(socket.port())));
    }
    text.parse().map(|address| (address, None)).map_err(|_| {
        "an address with or without a port: 10.97.0.10, 10.97.0.10:443, [2001:db8::1]:443".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_ends_are_read_as_people_write_them() {
        assert_eq!(network("192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
        assert_eq!(network("192.0.2.7/24").unwrap().to_string(), "192.0.2.0/24");
        assert_eq!(network("2001:db8::7/64").unwrap().to_string(), "2001:db8::/64");
        assert!(network("tenant").unwrap_err().contains("192.0.2.0/24"));
        let vip = IpAddr::from([10, 97, 0, 10]);
        assert_eq!(end("10.97.0.10"), Ok((vip, None)));
        assert_eq!(end("10.97.0.10:443"), Ok((vip, Some(443))));
        assert_eq!(end("[2001:db8::1]:443").unwrap().1, Some(443));
        assert!(end("443").is_err());
    }
}
