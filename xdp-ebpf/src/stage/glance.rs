//! XDP's one look at a frame: nearly all pass here, unchanged.

use network_types::eth::EtherType;
use network_types::ip::IpProto;

use crate::kernel::{Packet, Xdp};
use crate::packet::{ACK, V4_BYTES};

const TCP: u8 = IpProto::Tcp as u8;
const ETH_P_IP: [u8; 2] = (EtherType::Ipv4 as u16).to_ne_bytes();
const ETH_P_IPV6: [u8; 2] = (EtherType::Ipv6 as u16).to_ne_bytes();

/// Whether the frame may be one that XDP answers or drops: TCP without ACK, without VLAN tag, IP options or extension headers.
/// The value is whether it is IPv4. TCX sees what passes after segments were put together (GRO), so any with ACK is better
/// handled there.
#[inline(always)]
pub(crate) fn family(xdp: Xdp) -> Option<bool> {
    let h = xdp.head::<{ V4_BYTES as usize }>()?;
    match [h[12], h[13]] {
        ETH_P_IP if h[14] == 0x45 && h[23] == TCP && has_no_ack::<48>(xdp) => Some(true),
        ETH_P_IPV6 if h[20] == TCP && has_no_ack::<68>(xdp) => Some(false),
        _ => None,
    }
}

/// Whether the byte of TCP flags, the last of the first `N`, has no ACK, or the frame ends before it. A frame of which that byte is
/// in another piece passes.
#[inline(always)]
fn has_no_ack<const N: usize>(xdp: Xdp) -> bool {
    match xdp.head::<N>() {
        Some(head) => head[N - 1] & ACK == 0,
        None => xdp.length() < N as u32,
    }
}
