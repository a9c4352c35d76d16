//! TLS ClientHello over any number of segments and records (RFC 8446, RFC 6066).

use crate::maps::map_struct;

map_struct! {
    /// Where the parser stands.
    pub struct Parser = 288 {
        /// The server name so far.
        pub name: [u8; 256],
        pub fields: [u32; 8],
    }
}
