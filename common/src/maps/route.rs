//! Names, routes and Maglev tables.

use zerocopy::IntoBytes;

/// Most bytes of a server name (RFC 1035 section 2.3.4, without the root's dot).
pub const NAME_BYTES_MAX: usize = 253;

/// Most bytes of a server name that [`ShortNameKey`] holds: nearly every name there is.
pub const SHORT_NAME_BYTES_MAX: usize = 61;

map_struct! {
    /// Key of `ROUTES_EXACT`: a server name of at most [`SHORT_NAME_BYTES_MAX`] bytes on one listener. Hashed and compared
    /// for each new connection, and stored a million times: so it is one line of a cache, and not four.
    pub struct ShortNameKey = 64 {
        /// Listener id, network byte order.
        pub listener: [u8; 2],
        /// Bytes of the name, 1 to 61; in a [`NameKey`] of the whole of it, to 253.
        pub length: u8,
        /// Lower case, no trailing dot, zero behind `length`.
        pub name: [u8; SHORT_NAME_BYTES_MAX],
    }
}

map_struct! {
    /// A whole server name on one listener; key of `ROUTES_LONG`. Build it with `decide::route_key`.
    pub struct NameKey = 256 {
        /// Listener, length, and the beginning of the name: by itself the key of a short one.
        pub short: ShortNameKey,
        /// The rest of the name, zero behind its end.
        pub rest: [u8; NAME_BYTES_MAX - SHORT_NAME_BYTES_MAX],
    }
}

impl NameKey {
    /// Listener id.
    pub fn listener(&self) -> u32 {
        u16::from_be_bytes(self.short.listener).into()
    }

    /// The name; at most [`NAME_BYTES_MAX`] bytes, whatever length was read from a map.
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
    /// Key of `ROUTES_WILDCARD` (an LPM trie). The name is stored back to front with the wildcard's dot, so that the
    /// longest matching wildcard is the longest matching prefix: `*.example.com` is `moc.elpmaxe.`.
    pub struct SuffixKey = 260 {
        /// Bits of `listener` and `reversed` that count; host byte order.
        pub prefix_bits: u32,
        /// Listener id, network byte order.
        pub listener: [u8; 2],
        /// The name back to front.
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
    /// One family's backends of a route, as a Maglev table over members.
    #[derive(Hash)]
    pub struct Table = 12 {
        /// Names the table in `MAGLEV` and `MEMBERS`; never reused. Where `slots` is 1: the id of its one backend. 0 = no
        /// backend of this family.
        pub id: u32,
        /// Slots of the table (a prime); 1 = one member: neither member nor page is stored, which spares nearly every
        /// new connection a look-up.
        pub slots: u32,
        /// Backends in `MEMBERS` that take new flows.
        pub members: u32,
    }
}

impl Table {
    /// Whether [`Table::id`] is a backend's.
    #[inline(always)]
    pub const fn is_single(&self) -> bool {
        self.slots == 1
    }
}

map_struct! {
    /// Value of `ROUTES`. One write of it switches all backends of the route.
    pub struct Route = 32 {
        /// For clients that come over IPv4.
        pub v4: Table,
        /// For clients that come over IPv6.
        pub v6: Table,
        /// Backends of any weight and family.
        pub backends: u32,
        /// Id of its policy; 0 = none.
        pub policy: u16,
        /// How a backend is picked: [`PICK_MAGLEV`].
        pub pick: u8,
        /// Zero.
        pub reserved: u8,
    }
}

/// [`Route::pick`]: consistent hashing over the client's address and port.
pub const PICK_MAGLEV: u8 = 0;

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

/// Most backends of one family in one route (a slot of [`Page`] is one byte).
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

/// Most bytes of a route's or listener's name.
pub const LABEL_BYTES_MAX: usize = 127;

map_struct! {
    /// Value of `LABELS`: the name people gave to an id.
    pub struct Label = 128 {
        /// Bytes of `text` in use.
        pub length: u8,
        /// UTF-8.
        pub text: [u8; LABEL_BYTES_MAX],
    }
}
