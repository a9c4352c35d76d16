//! Every reason why a packet leaves the path, and every event that the daemon causes: number, stage, metric
//! label and text.
//!
//! This is the only list. Numbers are never reused. Each packet is counted under exactly one reason, per CPU,
//! in the map `COUNTERS`. `vestibule reasons` prints the list.

/// Generates the enum and its tables from one list.
macro_rules! reasons {
    ($($number:literal $name:ident $stage:literal $label:literal $text:literal;)*) => {
        /// Why a packet left the path, or why a connection ended without a packet.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $(#[doc = $text] $name = $number,)* }

        impl Reason {
            /// All reasons, ordered by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the stage that counts the reason.
            pub const fn stage(self) -> &'static str { match self { $(Self::$name => $stage,)* } }

            /// Returns the metric label. The pair of stage and label is unique.
            pub const fn label(self) -> &'static str { match self { $(Self::$name => $label,)* } }

            /// Returns a one-line description for people.
            pub const fn text(self) -> &'static str { match self { $(Self::$name => $text,)* } }

            /// Returns the name of the variant.
            pub const fn name(self) -> &'static str { match self { $(Self::$name => stringify!($name),)* } }
        }
    };
}

/// The number of entries of `COUNTERS`, with room for future reasons.
pub const REASONS_MAX: usize = 256;

reasons! {
    // "Handed on": to the next program, then to the node's own stack.
    0 NotOurs "classify" "not_ours" "destination is neither a VIP nor a source address; handed on";
    1 ParseNotIp "parse" "not_ip" "not IPv4 or IPv6, or of a VLAN; handed on";
    2 ParseTruncated "parse" "truncated" "headers longer than the packet; dropped when for a VIP";
    3 ParseFragment "parse" "fragment" "IP fragment for a VIP, or the first one of a connection's segment; dropped";
    4 ParseOptions "parse" "ip_options" "IPv4 options or IPv6 extension headers that may not be read over, for a VIP or on a backend's segment; dropped";
    5 ParseTcpHeader "parse" "tcp_header" "malformed TCP header for a VIP; dropped";
    6 ParseFlags "parse" "tcp_flags" "impossible TCP flags for a VIP, or in a backend's name; dropped";
    7 ParseIpChecksum "parse" "ip_checksum" "IPv4 header checksum wrong; dropped";
    8 ParseTcpChecksum "parse" "tcp_checksum" "TCP checksum wrong where a segment would be believed; dropped";
    9 ParseBusy "parse" "busy" "another packet was being handled on this CPU (PREEMPT_RT); dropped, the sender repeats";

    10 ClassifyOwnPort "classify" "own_port" "VIP is the node's own address and the port has no listener; handed on";
    11 ClassifyOwnTraffic "classify" "own_traffic" "the node's own traffic on a source address; handed on";
    12 ClassifyNoListener "classify" "no_listener" "no listener on this port of the VIP; answered with RST";
    13 ClassifyUnreachable "classify" "unreachable" "not TCP and the VIP is not the node's; answered with ICMP unreachable";
    14 ClassifyDropped "classify" "dropped" "nothing may be answered (ICMP, RST) and the VIP is not the node's; dropped";

    15 SynKeepAlive "syn" "keep_alive" "keep-alive of a client that has sent nothing yet; acknowledged, nothing stored";
    16 SynOldReset "syn" "old_backend_reset" "the client reused a port for a new connection; its old backend is reset (event)";
    17 SynBusy "syn" "busy" "another packet of the half-open connection is being handled; dropped, the client repeats";
    18 SynChallenged "syn" "challenged" "SYN on an open connection; answered with a challenge ACK, and with a cookie if it comes again";
    19 SynDraining "syn" "draining" "the node takes no new connections (`vestibule drain`); answered with RST";
    // 27 and 29 were in use.
    20 SynAnswered "syn" "answered" "SYN answered with a cookie";
    21 SynForwarded "syn" "forwarded" "SYN of a TCP listener passed to its backend";
    22 SynAcked "syn" "acked" "handshake completed; nothing stored";
    23 SynCookieMismatch "syn" "cookie_mismatch" "neither flow nor valid cookie; answered with RST";
    24 SynEarly "syn" "early_segment" "a later segment of a hello came before the first; dropped, the client repeats";
    25 SynStray "syn" "stray" "RST without flow, or not at its client's number; dropped";
    26 SynFlowReplaced "syn" "flow_replaced" "the client reused a port for a new connection; its old one is forgotten (event)";
    28 SynClosedEarly "syn" "closed_early" "client closed before it sent a hello; answered with RST";

    30 HelloBuffered "hello" "buffered" "part of a hello kept";
    31 HelloAcked "hello" "acked" "part of a hello kept or repeated, or a keep-alive; acknowledged";
    32 HelloGap "hello" "gap" "segment beyond a gap; acknowledged what is there";
    33 HelloSourceFull "hello" "source_full" "source has too many incomplete hellos while over half of the buffers are taken; answered with RST";
    34 HelloBufferFailed "hello" "buffer_failed" "no memory for the hello, or its bytes were evicted before its backend had them; answered with RST";
    35 HelloEvicted "hello" "evicted" "the oldest waiting hello was evicted (event); its client is reset";
    36 HelloNotTls "hello" "not_tls" "the client does not speak TLS; answered with RST";
    37 HelloMalformed "hello" "malformed" "malformed ClientHello; answered with RST";
    38 HelloTooLong "hello" "too_long" "ClientHello over 16 KiB, or over 18 KiB with record headers; answered with RST";
    39 HelloNameInvalid "hello" "name_invalid" "server name is not a DNS name; answered with RST";
    40 HelloReset "hello" "reset" "client reset while its hello was waiting";
    41 HelloAbandoned "hello" "abandoned" "client closed while its hello was incomplete; answered with RST";
    42 HelloTimeout "hello" "timeout" "hello not complete in time; client reset";
    43 HelloBeyond "hello" "beyond" "data behind the hello, or a repeated hello, while the backend answers; the client repeats";
    44 HelloBusy "hello" "busy" "another packet of the connection is being handled, or every buffer is being taken; dropped, the client repeats";

    45 RouteNone "route" "unknown_name" "no route for this server name; answered with RST";
    46 RouteNoName "route" "no_name" "no server name and no default route; answered with RST";
    47 RouteReserved "route" "reserved_name" "a name nobody may claim; answered with RST";
    48 RouteChanged "route" "changed" "listener, name or backend changed while it was looked up; dropped, the sender repeats";

    49 HelloChallenged "hello" "challenged" "RST of a waiting client at another number than its own; answered with a challenge ACK";

    50 PickNone "pick" "no_backend" "the route has no backend that takes new flows; answered with RST";
    51 PickNoFamily "pick" "no_family" "the route has no backend of the client's address family; answered with RST";
    52 PickRefused "pick" "refused" "the share of a backend reference that leads nowhere; answered with RST";

    55 ConnectSyn "connect" "syn" "SYN sent to a backend";
    56 ConnectAgain "connect" "syn_again" "SYN to the same backend repeated";
    57 ConnectNext "connect" "next_backend" "backend refused or silent; SYN sent to the next one";
    58 ConnectExhausted "connect" "exhausted" "every backend refused; client reset";
    59 ConnectNoPort "connect" "no_source_port" "no free source port towards the backend; answered with RST";
    60 ConnectHello "connect" "hello" "backend answered; hello delivered";
    61 ConnectTableFull "connect" "flow_table_full" "flow table full; both sides reset";
    62 ConnectRetired "connect" "retired" "backend removed while connecting; both sides reset";
    63 ConnectStray "connect" "stray" "a segment from a backend that does not answer our SYN, and may be for another connection of the node; handed on";
    64 ConnectRepeated "connect" "hello_repeated" "bytes we acknowledged repeated to the backend";
    65 ConnectRefused "connect" "refused" "backend of a TCP listener refused; client reset";
    66 ConnectDeclined "connect" "declined_option" "backend declined an option that the client was granted (event)";
    67 ConnectOld "connect" "old_connection" "backend answered for an old connection on our port; SYN sent from another port";
    68 ConnectBusy "connect" "busy" "another packet of the waiting connection is being handled; dropped, the sender repeats";
    69 ConnectIgnored "connect" "ignored" "answer that a backend repeated, that accepts nothing, or that is for the client's own old connection; dropped";

    70 ForwardBackend "forward" "to_backend" "passed to the backend";
    71 ForwardClient "forward" "to_client" "passed to the client";
    72 ForwardReset "forward" "reset" "RST passed on; the flow ends";
    73 ForwardLinger "forward" "after_reset" "packet of a reset flow; answered with RST";
    74 ForwardStray "forward" "stray" "packet of a backend, addressed to a client, of no connection here; handed on";

    75 ForwardTrial "forward" "reset_on_trial" "RST ahead of what the other end acknowledged; passed on, and the other end is asked";
    76 ForwardUnfit "forward" "reset_unfit" "RST at a number that ends nothing; passed on";
    77 ForwardChanged "forward" "changed" "the connection changed while a backend's segment was handled; dropped, the backend repeats";
    78 ForwardUnreported "forward" "trial_unreported" "no room to report a flow on trial to the daemon, whose next walk over all flows finds it (event)";

    80 EmitNoRoute "emit" "no_route" "no route to the destination; dropped";
    81 EmitTooBig "emit" "too_big" "ICMP or a segment of ours is larger than the device's MTU; dropped";
    82 EmitHopLimit "emit" "hop_limit" "hop limit or TTL of an ICMP error used up; dropped";
    83 EmitFailed "emit" "failed" "the kernel refused to change or send the packet; dropped";
    84 EmitForwardingOff "emit" "forwarding_off" "the kernel does not forward on the device; dropped";
    85 EmitCopyLost "emit" "copy_lost" "a packet sent beside another had no route or no link address yet; lost (event)";
    86 EmitUnanswered "emit" "rst_unanswered" "RST that would have been answered with RST; dropped";

    89 ExpireRefused "expire" "source_range" "the source ranges of the route no longer hold the client; both sides reset (event)";
    90 ExpireIdle "expire" "idle" "flow idle too long; both sides reset (event)";
    91 ExpireRemoved "expire" "removed" "backend, route or listener removed; both sides reset (event)";
    92 ExpireClosed "expire" "closed" "closed flow forgotten (event)";
    93 ExpireHello "expire" "hello" "waiting hello ended by time limit or removal; client reset (event)";
    94 ExpireHalfOpen "expire" "half_open" "half-open connection forgotten (event)";

    95 ExpireTrial "expire" "trial" "an end did not answer three probes after a RST for it, or in a crowded flow map; both sides reset (event)";
    96 ExpireProbe "expire" "probe" "an end asked by a keep-alive probe whether it still has the connection (event)";
    97 ExpireHeld "expire" "held" "bytes or an end stayed unacknowledged, or half closed, for too long; both sides reset (event)";
    98 ExpireCrowded "expire" "crowded" "the flow map is over four fifths full: connection without progress ended; both sides reset (event)";
    99 ExpireShare "expire" "share" "no room to count more sources: the count of the one with the fewest connections is dropped (event)";

    100 IcmpEcho "icmp" "echo" "ping of a VIP; answered";
    101 IcmpToBackend "icmp" "to_backend" "ICMP error about a segment to the client; passed to the backend";
    102 IcmpToClient "icmp" "to_client" "ICMP error about a segment to the backend; passed to the client";
    103 IcmpStray "icmp" "stray" "ICMP error that fits no segment in flight, or with a wrong checksum; dropped";
    104 IcmpRefused "icmp" "refused" "a backend we dial is unreachable, by ICMP (event)";
    105 IcmpTooBig "icmp" "too_big" "larger than the MTU of its egress; answered with ICMP";
    106 IcmpHopLimit "icmp" "hop_limit" "hop limit or TTL used up; answered with ICMP";
    107 IcmpFragmented "icmp" "fragmented" "ICMP `too big` about an IPv4 segment to the client: kept from the backend, whose segments to this client lose DF";
    108 IcmpTooMany "icmp" "too_many" "more than 25 IPv6 errors `too big` about segments to a group of clients (1 of 128) in a second, the first about each connection aside; dropped";

    110 AdmitRouteFull "admit" "route_full" "the route has as many connections as it may have; answered with RST";
    111 AdmitSourceFull "admit" "source_full" "the source has as many connections to the route as it may have; answered with RST";
    112 AdmitUncounted "admit" "uncounted" "no room to count a source's connections; admitted all the same (event)";
    113 AdmitConnecting "admit" "connecting" "the source has as many hellos waiting for the route's backends as it may have; answered with RST";
    114 AdmitSourceRange "admit" "source_range" "the source ranges of the listener or route do not hold the client; answered with RST";
    115 AdmitSynRange "admit" "source_range_syn" "SYN of a client that the source ranges of the listener do not hold; dropped";

    116 NeighbourAnswered "neighbour" "answered" "ARP request or neighbour solicitation for an address that this node announces; answered";
    117 NeighbourElsewhere "neighbour" "elsewhere" "ARP request or neighbour solicitation for an address that another node announces; dropped";
    118 NeighbourMalformed "neighbour" "malformed" "ARP request or neighbour solicitation for an address that this node announces, which no host sends; dropped";
    119 NeighbourConflict "neighbour" "conflict" "another host says that it has an address that this node announces; handed on to the kernel";
    120 NeighbourGateClosed "neighbour" "gate_closed" "ARP request or neighbour solicitation for an address of this node, whose agent has been dead for longer than its grace while another node lives; dropped";

    121 HeartbeatAnswered "heartbeat" "answered" "question of another node whether this one lives; answered";
    122 HeartbeatPassed "heartbeat" "passed" "another node's answer or bids; handed on to the agent";
    123 HeartbeatRefused "heartbeat" "refused" "heartbeat that is malformed, this node's own, or not signed with a key of the cluster; dropped";

    124 XdpAnswered "xdp" "answered" "SYN answered with a cookie by XDP, before the kernel made a packet of it";
    125 XdpNoListener "xdp" "no_listener" "no listener on this port of the VIP; SYN answered with RST by XDP";

    126 PreviousPassed "previous" "passed" "segment, or ICMP error about one, of a connection that is not known here and may be open at the node that announced the address before; passed to it";
    127 PreviousHopLimit "previous" "hop_limit" "the same with a hop limit or TTL that is used up; dropped";
    128 PreviousUnattended "previous" "unattended" "segment that would open a connection at an address that another node announces, or may have taken, while this node's agent is dead, so that its routes may be old; dropped";

    129 ClassifyNodeStray "classify" "node_stray" "came by the pair of the node's own clients, and is not for us; dropped, for the node's stack would send it there again";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_reason_has_its_own_label_and_a_text() {
        let labels: BTreeSet<_> = Reason::ALL.iter().map(|r| (r.stage(), r.label())).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert!((*reason as usize) < REASONS_MAX);
            assert!(!reason.text().is_empty() && !reason.text().ends_with('.'), "{}", reason.name());
        }
    }

    #[test]
    fn numbers_ascend() {
        assert!(Reason::ALL.is_sorted_by(|a, b| (*a as u32) < (*b as u32)));
    }
}
