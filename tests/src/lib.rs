//! The harness of Vestibule's tests: network namespaces, links, packets, and the loaded programs.
//!
//! Everything here works on namespaces of its own, named `vst-<pid>-<n>-<role>`, and removes them when the guard
//! objects drop, also on panic.

/// Network namespaces, devices, addresses.
pub mod net;
/// Device offloads, switched by ioctl.
pub mod offload;
/// Addresses and names of the test networks.
pub mod addresses;
/// TCP options.
pub mod tcp_option;
/// Packets by meaning.
pub mod packet;
/// Keys of connections by their ends.
pub mod tuple;
/// Whole packets compared.
pub mod compare;
/// What a lab's ends send and receive, for whoever looks for a fault.
pub mod capture;
/// Frames as seen on a device.
pub mod tap;
/// The small network around programs under test.
pub mod world;
/// The programs: loaded, maps filled, run once a packet.
pub mod program;
/// What the kernel says about their maps.
mod map_facts;
/// What they counted.
mod counters;
/// What another CPU does while a program stands at one point.
pub mod schedule;
/// Their maps, filled in the words of the configuration.
pub mod fill;
/// Recorded and adversarial ClientHellos with what a router may make of them.
pub mod corpus;
/// Configuration files.
pub mod config;
/// The real binary.
pub mod daemon;
/// What its commands print as JSON.
pub mod report;
/// Folders for files of one test.
pub mod temp;
/// Long contents with a hash.
pub mod bytes;
/// Tenants' authorities, and TLS ends.
pub mod tls;
/// Backends.
pub mod server;
/// ICMP messages.
pub mod icmp;
/// Sockets that send IPv4 options or IPv6 extension headers.
pub mod ip_options;
/// Loss, duplication and reordering between two devices.
pub mod injector;
/// Client, balancer and tenants.
pub mod topology;
/// Users of a tenant, by several TLS clients.
pub mod clients;
/// TLS servers that are not ours.
pub mod foreign;
/// ClientHellos, made by hand.
pub mod hello;
/// Clients below TLS.
pub mod raw;
/// Connections told packet by packet, both ends by a script.
pub mod script;
/// Kubernetes: an API server alone, or a cluster of three nodes.
pub mod cluster;
