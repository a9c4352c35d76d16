//! The harness of Vestibule's tests: network namespaces, links, packets, and the loaded programs.
//!
//! Everything here uses its own namespaces, named `vst-<pid>-<n>-<role>`, and removes them when the guard
//! objects are dropped, also on panic.

/// Network namespaces, devices, addresses.
pub mod net;
/// Device offloads, switched by ioctl.
pub mod offload;
/// Addresses and names of the test networks.
pub mod addresses;
/// TCP options.
pub mod tcp_option;
/// Packets as structured values.
pub mod packet;
/// Map keys of connections, built from their endpoints.
pub mod tuple;
/// Comparison of whole packets.
pub mod compare;
/// Packet captures at a lab's ends, for debugging.
pub mod capture;
/// Whole frames, received and sent on a device.
pub mod tap;
/// What passes the ports of a segment.
pub mod ports;
/// The small network around programs under test.
pub mod world;
pub mod live_frames;
/// Packets as a program gets them, and many of them.
mod burst;
/// The programs: loaded, with filled maps, and run once per packet.
pub mod program;
/// XDP in front of TCX in that network.
mod front;
/// Maps, programs and links that are pinned, as another program finds them.
pub mod pinned;
/// More flows than a test can open.
pub mod copies;
/// Walks over all flows, hours ahead.
pub mod walker;
/// Millions of flows in the maps of a daemon.
pub mod written_flows;
/// The end of threads.
pub mod stop;
/// Two packets at the same moment, on two CPUs.
pub mod at_once;
/// BPF_PROG_TEST_RUN with its flags.
mod test_run;
/// What a run of a program takes.
pub mod timed;
/// What the kernel reports about their maps.
mod map_facts;
/// Their counters.
mod counters;
/// The mark of a run that uses a CPU's working memory.
pub mod busy;
/// Map changes by another CPU, forced at one point of a program.
pub mod schedule;
/// Their maps, filled in terms of the configuration.
pub mod fill;
/// Recorded and adversarial ClientHellos, each with the verdicts that a router may reach.
pub mod corpus;
/// Configuration files.
pub mod config;
/// The real binary.
pub mod daemon;
/// A TCP relay between namespaces.
pub mod relay;
/// The JSON that its commands print.
pub mod report;
/// Temporary folders of one test.
pub mod temp;
/// Long contents, verified by a hash.
pub mod bytes;
/// Tenants' certificate authorities, and TLS clients and servers.
pub mod tls;
/// Backends.
pub mod server;
/// Random numbers that a seed decides.
pub mod dice;
/// ICMP messages.
pub mod icmp;
/// Sockets that send IPv4 options or IPv6 extension headers.
pub mod ip_options;
/// Loss, duplication and reordering between two devices.
pub mod injector;
/// Captured RSTs, and the reasons counted for them.
pub mod resets;
/// Kernel and surroundings.
pub mod machine;
/// Committed tables of results.
pub mod record;
/// Client, balancer and tenants.
pub mod topology;
/// Forged packets for a connection through Vestibule and for a direct one.
pub mod stranger;
/// Users of a tenant, with several TLS clients.
pub mod clients;
/// Third-party TLS servers.
pub mod foreign;
/// ClientHellos, built without a TLS library.
pub mod hello;
/// Clients below TLS.
pub mod raw;
/// Connections scripted packet by packet, at both ends.
pub mod script;
/// Kubernetes: an API server alone, or a cluster of three nodes.
pub mod cluster;
