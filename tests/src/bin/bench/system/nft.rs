//! nftables: destination NAT of one address per tenant. It does not look at names.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use tests::clients::run;

use crate::rig::{OWN_VIPS, Rig, SERVERS};

pub(super) fn start(rig: &Rig, tenants: u32) -> Result<()> {
    let mut elements = String::new();
    for tenant in 0..tenants {
        let vip = Ipv4Addr::from(u32::from(*OWN_VIPS.ip()) + tenant);
        let port = super::server_port(rig, tenant);
        write!(elements, "{vip} : {} . {port}, ", SERVERS.ip())?;
    }
    let rules = format!(
        "table ip bench {{
  map doors {{ type ipv4_addr : ipv4_addr . inet_service; elements = {{ {elements} }} }}
  chain before {{ type nat hook prerouting priority dstnat; meta l4proto tcp dnat ip to ip daddr map @doors; }}
}}
"
    );
    let output = run(rig.node.command("nft").args(["-f", "-"]), rules.as_bytes()).context("running nft")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
    // Otherwise closed connections would fill the connection table, whose size is set for the whole machine.
    rig.node.sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "10")
}
