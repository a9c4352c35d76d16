//! Names, routes and Maglev tables.

use zerocopy::IntoBytes;

/// The most bytes in a server name (RFC 1035 section 2.3.4, without the root's dot).
pub const NAME_BYTES_MAX: usize = 253;

/// The most bytes of a server name that fits in [`ShortNameKey`]. Nearly all names do.
pub const SHORT_NAME_BYTES_MAX: usize = 61;

map_struct! {
    /// Key of `ROUTES_EXACT`: a server name of at most [`SHORT_NAME_BYTES_MAX`] bytes on one listener. It is
    /// hashed and compared for each new connection, and up to a million are stored, so it has the size of one
    /// cache line, not four.
    pub struct ShortNameKey = 64 {
        /// Listener id, network byte order.
        pub listener: [u8; 2],
        /// Bytes of the name, 1 to 61. Inside a [`NameKey`]: bytes of the whole name, 1 to 253.
        pub length: u8,
        /// Lower case, no trailing dot, zero after `length`.
        pub name: [u8; SHORT_NAME_BYTES_MAX],
    }
}

map_struct! {
    /// A whole server name on one listener; key of `ROUTES_LONG`. Build it with `decide::route_key`. A pattern of
    /// one label before a suffix has the key of the name `*.suffix`, which no client can ask for.
    pub struct NameKey = 256 {
        /// Listener, length and the start of the name. For a short name, this is the key in `ROUTES_EXACT`.
        pub short: ShortNameKey,
        /// The rest of the name, zero after its end.
        pub rest: [u8; NAME_BYTES_MAX - SHORT_NAME_BYTES_MAX],
    }
}

impl NameKey {
    /// Returns the listener id.
    pub fn listener(&self) -> u32 {
        u16::from_be_bytes(self.short.listener).into()
    }

    /// Returns the name, at most [`NAME_BYTES_MAX`] bytes, even if the length read from a map is larger.
    pub fn name(&self) -> &[u8] {
        let name = self.as_bytes().get(3..).unwrap_or_default();
        name.get(..usize::from(self.short.length)).unwrap_or(name)
    }
}

impl From<ShortNameKey> for NameKey {
    fn from(short: ShortNameKey) -> Self {
        Self { short, ..Self::zeroed() }
    }
}

map_struct! {
    /// Key of `ROUTES_WILDCARD` (an LPM trie). The name is stored reversed, with the wildcard's dot, so that
    /// the longest matching wildcard is the longest matching prefix: `*.example.com` is stored as
    /// `moc.elpmaxe.`.
    pub struct SuffixKey = 260 {
        /// Number of bits of `listener` and `reversed` to compare; host byte order.
        pub prefix_bits: u32,
        /// Listener id, network byte order.
        pub listener: [u8; 2],
        /// The reversed name.
        pub reversed: [u8; 254],
    }
}

map_struct! {
    /// Value of `ROUTES_EXACT`, `ROUTES_LONG` and `ROUTES_WILDCARD`.
    pub struct NameRoute = 4 {
        /// Route id.
        pub route: u32,
    }
}

map_struct! {
    /// The backends of one address family of a route, as a Maglev table over members.
    #[derive(Hash)]
    pub struct Table = 12 {
        /// Identifies the table in `MAGLEV` and `MEMBERS`; never reused. If `slots` is 1: the id of the only
        /// backend. 0 = no backend of this family.
        pub id: u32,
        /// Slots of the table (a prime). 1 = one member: neither member nor page is stored, which saves
        /// nearly every new connection a lookup.
        pub slots: u32,
        /// Backends in `MEMBERS` that take new flows.
        pub members: u32,
    }
}

impl Table {
    /// Whether [`Table::id`] is the id of the only backend.
    #[inline(always)]
    pub const fn is_single(&self) -> bool {
        self.slots == 1
    }
}

map_struct! {
    /// Value of `ROUTES`. A single write switches all backends of the route.
    pub struct Route = 32 {
        /// For IPv4 clients.
        pub v4: Table,
        /// For IPv6 clients.
        pub v6: Table,
        /// Number of backends of any weight and family.
        pub backends: u32,
        /// Id of the policy that says whose connections are admitted: see [`super::policy::PolicyKey`]; 0 = anybody's.
        pub policy: u16,
        /// How a backend is picked: [`PICK_MAGLEV`] or [`PICK_ADDRESS`].
        pub pick: u8,
        /// Zero.
        pub reserved: u8,
    }
}

/// [`Route::pick`]: consistent hashing over the client's address and port.
pub const PICK_MAGLEV: u8 = 0;

/// [`Route::pick`]: the same over the client's address alone, so that all its connections reach one backend.
pub const PICK_ADDRESS: u8 = 1;

/// Slots in one [`Page`].
pub const PAGE_SLOTS: usize = 128;

map_struct! {
    /// Key of `MAGLEV`.
    #[derive(Hash)]
    pub struct PageKey = 8 {
        /// [`Table::id`].
        pub table: u32,
        /// Slot number / [`PAGE_SLOTS`].
        pub page: u32,
    }
}

map_struct! {
    /// Value of `MAGLEV`: the member of each slot.
    pub struct Page = 128 {
        pub slots: [u8; PAGE_SLOTS],
    }
}

map_struct! {
    /// Key of `MEMBERS`; the value is a backend id (`u32`).
    #[derive(Hash)]
    pub struct MemberKey = 8 {
        /// [`Table::id`].
        pub table: u32,
        /// 0 to [`Table::members`] - 1; at most 254.
        pub member: u32,
    }
}

/// The most backends of one family in one route (a slot of [`Page`] is one byte).
pub const MEMBERS_MAX: usize = 255;

/// [`LabelKey::kind`]: the id is a route's.
pub const LABEL_ROUTE: u32 = 1;
/// [`LabelKey::kind`]: the id is a listener's.
pub const LABEL_LISTENER: u32 = 2;

map_struct! {
    /// Key of `LABELS`.
    #[derive(Hash)]
    pub struct LabelKey = 8 {
        /// [`LABEL_ROUTE`] or [`LABEL_LISTENER`].
        pub kind: u32,
        /// Route or listener id.
        pub id: u32,
    }
}

/// The most bytes in the name of a route or listener.
pub const LABEL_BYTES_MAX: usize = 127;

map_struct! {
    /// Value of `LABELS`: the configured name of a route or listener.
    pub struct Label = 128 {
        /// Bytes of `text` in use.
        pub length: u8,
        /// UTF-8.
        pub text: [u8; LABEL_BYTES_MAX],
    }
}
