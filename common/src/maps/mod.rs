//! Keys and values of every BPF map: the contract between kernel, daemon, CLI and `bpftool`.
//!
//! Types have fixed sizes, no implicit padding (`zerocopy` proves that at compile time), and no `bool`,
//! `Option` or enum in a stored value. Addresses and ports have their own types, in network byte order. Every
//! other number is in host byte order unless its comment says otherwise.

/// Proves the layout of a map type and, for user space, allows aya to copy it.
macro_rules! map_type {
    ($name:ident = $size:literal) => {
        const _: () = assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
        const _: () = {
            const fn proved<T: zerocopy::IntoBytes + zerocopy::FromBytes + zerocopy::Immutable + Copy>() {}
            proved::<$name>();
        };
        // SAFETY: `IntoBytes + FromBytes` above prove that every byte is initialised and every bit pattern is
        // valid.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    };
}
pub(crate) use map_type;

/// Defines a map type with the derives and checks that all map types share.
macro_rules! map_struct {
    ($(#[$meta:meta])* pub struct $name:ident = $size:literal { $($(#[$fmeta:meta])* pub $field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        $crate::maps::map_type!($name = $size);
        impl $name {
            /// Returns the value with all bytes zero.
            pub const fn zeroed() -> Self {
                // SAFETY: `FromBytes` (derived above) proves that all-zero is a valid value.
                unsafe { core::mem::zeroed() }
            }
        }
        impl Default for $name {
            fn default() -> Self { Self::zeroed() }
        }
    };
}
pub(crate) use map_struct;

/// The only stored form of addresses.
pub mod address;
/// Listeners, and the roles of addresses.
pub mod listener;
/// Names, routes, Maglev tables.
pub mod route;
/// Which clients are admitted.
pub mod policy;
/// Which addresses are announced, on which devices.
pub mod announced;
/// Segments on which several nodes may announce addresses.
pub mod segment;
/// Who announced an address before.
pub mod previous;
/// Backends.
pub mod backend;
/// Connections: waiting hellos, half-open, established, closed.
pub mod flow;
/// The list of flows whose backend sees its client's own address.
pub mod dnat_flow;
/// Counts of sources.
pub mod source;
/// Next hops, shared by flows.
pub mod next_hop;
/// Words of connections that several CPUs change at the same time.
pub mod word;
/// Counts of errors that were passed.
pub mod told;
/// Settings, cookie keys and cursors.
pub mod settings;
/// Counters of routes, and what the kernel reports to the daemon.
pub mod event;
/// The filter and the records of `vestibule trace`.
pub mod trace;

/// Incremented whenever a map's key, value or meaning changes. Pinned in the map `ABI`. A mismatch is
/// refused before anything is changed.
pub const ABI_VERSION: u32 = 6;

/// Bit of [`name::DRAIN`]: `vestibule drain` was run.
pub const DRAIN_ASKED: u32 = 1;
/// Bit of [`name::DRAIN`]: Vestibule is withdrawn from the cluster or from this node.
pub const DRAIN_WITHDRAWN: u32 = 2;

/// Names of the maps, as pinned under `/sys/fs/bpf/vestibule/` and as shown by `bpftool` (at most 15 bytes).
pub mod name {
    /// `[u32; 1]`: [`super::ABI_VERSION`].
    pub const ABI: &str = "ABI";
    /// [`super::settings::Settings`], one element.
    pub const SETTINGS: &str = "SETTINGS";
    /// [`super::settings::CookieKey`], two elements.
    pub const COOKIE_KEYS: &str = "COOKIE_KEYS";
    /// [`super::settings::Cursors`], one element.
    pub const CURSORS: &str = "CURSORS";
    /// Connections to a destination, `[u64;` [`crate::decide::source_port::CURSORS`]`]`.
    pub const PORT_CURSORS: &str = "PORT_CURSORS";
    /// [`super::settings::Ids`], one element; user space only.
    pub const IDS: &str = "IDS";
    /// `[u32; 1]`: not 0 = no new connections. Bits [`super::DRAIN_ASKED`], written by the command line, and
    /// [`super::DRAIN_WITHDRAWN`], written by the agent.
    pub const DRAIN: &str = "DRAIN";
    /// `[u32; 1]`: index of the device by which clients on the node itself come, and are answered; 0 = there is none.
    pub const NODE_CLIENTS: &str = "NODE_CLIENTS";
    /// [`super::address::Address`] -> [`super::listener::AddressRole`].
    pub const ADDRESSES: &str = "ADDRESSES";
    /// [`super::announced::AnnouncedKey`] -> [`super::announced::Announced`].
    pub const ANNOUNCED: &str = "ANNOUNCED";
    /// device index -> [`super::segment::Segment`].
    pub const SEGMENTS: &str = "SEGMENTS";
    /// device index -> [`super::segment::HeardNs`]: when another node of the segment was last there, by the clock of [`super::segment::Segment`].
    pub const HEARD: &str = "HEARD";
    /// [`super::announced::AnnouncedKey`] -> [`super::segment::Bid`]; user space only.
    pub const BIDS: &str = "BIDS";
    /// [`super::announced::AnnouncedKey`] -> [`super::segment::Owned`]; user space only.
    pub const OWNED: &str = "OWNED";
    /// [`super::announced::AnnouncedKey`] -> [`super::previous::Previous`].
    pub const PREVIOUS: &str = "PREVIOUS";
    /// [`super::previous::PeerKey`] -> [`super::previous::Peer`].
    pub const PEERS: &str = "PEERS";
    /// [`super::listener::ListenerKey`] -> [`super::listener::Listener`].
    pub const LISTENERS: &str = "LISTENERS";
    /// [`super::route::ShortNameKey`] -> [`super::route::NameRoute`].
    pub const ROUTES_EXACT: &str = "ROUTES_EXACT";
    /// [`super::route::NameKey`] -> [`super::route::NameRoute`]; names too long for `ROUTES_EXACT`.
    pub const ROUTES_LONG: &str = "ROUTES_LONG";
    /// [`super::route::SuffixKey`] -> [`super::route::NameRoute`]; matches the longest prefix of the reversed
    /// name.
    pub const ROUTES_WILDCARD: &str = "ROUTES_WILDCARD";
    /// [`super::policy::PolicyKey`] -> [`super::policy::PolicyRange`]; a client is admitted if a prefix matches.
    pub const POLICIES: &str = "POLICIES";
    /// route id -> [`super::route::Route`].
    pub const ROUTES: &str = "ROUTES";
    /// [`super::route::PageKey`] -> [`super::route::Page`].
    pub const MAGLEV: &str = "MAGLEV";
    /// [`super::route::MemberKey`] -> backend id.
    pub const MEMBERS: &str = "MEMBERS";
    /// backend id -> [`super::backend::Backend`].
    pub const BACKENDS: &str = "BACKENDS";
    /// [`super::route::LabelKey`] -> [`super::route::Label`]; user space only.
    pub const LABELS: &str = "LABELS";
    /// route id -> [`super::event::RouteCounters`].
    pub const ROUTE_COUNTERS: &str = "ROUTE_COUNTERS";
    /// [`super::flow::ClientTuple`] -> [`super::flow::Flow`].
    pub const FLOWS: &str = "FLOWS";
    /// [`super::flow::BackendTuple`] -> [`super::flow::Reply`].
    pub const NATS: &str = "NATS";
    /// [`super::flow::ClientTuple`] -> [`super::dnat_flow::DnatFlow`]: flows whose backend sees its client's own address, as far as
    /// there is room.
    pub const DNAT_FLOWS: &str = "DNAT_FLOWS";
    /// [`super::flow::ClientTuple`] -> [`super::flow::Pending`].
    pub const PENDING: &str = "PENDING";
    /// [`super::flow::Buffer`]: bytes of waiting hellos.
    pub const BUFFERS: &str = "BUFFERS";
    /// client /32 or /64 -> [`super::source::Source`].
    pub const SOURCES: &str = "SOURCES";
    /// [`super::source::ShareKey`] -> [`super::source::Share`].
    pub const SHARES: &str = "SHARES";
    /// [`super::flow::ClientTuple`] -> [`super::flow::HalfOpen`].
    pub const HALF_OPENS: &str = "HALF_OPENS";
    /// [`super::flow::Slot`]: the owners of the entries of `HALF_OPENS`, ordered by age.
    pub const HALF_OPEN_RING: &str = "HALF_OPEN_RING";
    /// `u32`: records in `HALF_OPENS` by listener id, [`super::listener::IDS`] elements. Read with
    /// [`crate::decide::admit::count`].
    pub const HALF_OPEN_COUNT: &str = "HALF_OPEN_COUNT";
    /// [`super::flow::Slot`]: closed flows, in the order in which they closed.
    pub const CLOSED_RING: &str = "CLOSED_RING";
    /// reason number -> packets, per CPU.
    pub const COUNTERS: &str = "COUNTERS";
    /// [`super::event::Expiry`] ring buffer.
    pub const EVICTIONS: &str = "EVICTIONS";
    /// Working memory of the programs, per CPU.
    pub const SCRATCH: &str = "SCRATCH";
    /// Working memory of the XDP program, per CPU.
    pub const FRONT: &str = "FRONT";
    /// Next hops that the XDP program found in the last 134 milliseconds, per CPU.
    pub const FRONT_HOPS: &str = "FRONT_HOPS";
    /// Next hops found in the last 134 milliseconds, per CPU.
    pub const NEXT_HOPS: &str = "NEXT_HOPS";
    /// [`super::next_hop::Hop`]: next hops that flows name by their numbers.
    pub const HOPS: &str = "HOPS";
    /// [`super::trace::TraceFilter`], one element. Written by `vestibule trace`.
    pub const TRACE: &str = "TRACE";
    /// [`super::trace::TraceCount`], one element.
    pub const TRACE_COUNT: &str = "TRACE_COUNT";
    /// Ring buffer of `aya-log`; each line is a [`super::trace::TraceRecord`]. `aya-log` requires this name.
    pub const AYA_LOGS: &str = "AYA_LOGS";

    /// All pinned maps.
    pub const ALL: [&str; 48] = [
        ABI,
        SETTINGS,
        COOKIE_KEYS,
        CURSORS,
        PORT_CURSORS,
        IDS,
        DRAIN,
        NODE_CLIENTS,
        ADDRESSES,
        ANNOUNCED,
        SEGMENTS,
        HEARD,
        BIDS,
        OWNED,
        PREVIOUS,
        PEERS,
        LISTENERS,
        ROUTES_EXACT,
        ROUTES_LONG,
        ROUTES_WILDCARD,
        POLICIES,
        ROUTES,
        MAGLEV,
        MEMBERS,
        BACKENDS,
        LABELS,
        ROUTE_COUNTERS,
        FLOWS,
        NATS,
        DNAT_FLOWS,
        PENDING,
        BUFFERS,
        SOURCES,
        SHARES,
        HALF_OPENS,
        HALF_OPEN_RING,
        HALF_OPEN_COUNT,
        CLOSED_RING,
        COUNTERS,
        EVICTIONS,
        SCRATCH,
        FRONT,
        FRONT_HOPS,
        NEXT_HOPS,
        HOPS,
        TRACE,
        TRACE_COUNT,
        AYA_LOGS,
    ];
}
