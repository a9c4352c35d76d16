//! From the listener, and a server name if there is one, to the route: see `common::decide::route`.

use common::decide::route::{self, Name};
use common::decide::route_key::{self, NAME_BUFFER};
use common::maps::route::SuffixKey;
use common::wire::client_hello::Outcome;

use crate::exit::Exit;
use crate::maps::Maps;
use crate::scratch::{Dial, Waiting};
use crate::verified::{looped, verified};

verified! {
    /// Finds the route of the name in the hello and puts it in `dial.choice`, with no backend tried yet.
    pub(crate) fn by_name as route_by_name(dial: Dial, waiting: Waiting) -> Result<(), Exit> {
        let parser = &waiting.pending.parser;
        let name = Name { bytes: &parser.name, length: parser.name_length };
        find(dial, (parser.outcome() == Outcome::Name).then_some(name))
    }
}

verified! {
    /// Finds the route of a TCP listener and puts it in `dial.choice`, with no backend tried yet.
    pub(crate) fn of_listener as route_of_listener(dial: Dial) -> Result<(), Exit> {
        find(dial, None)
    }
}

#[inline(always)]
fn find(dial: &mut Dial, name: Option<Name<'_>>) -> Result<(), Exit> {
    match route::route(&Maps, &dial.listener, name, &mut dial.keys, reverse) {
        Ok((route, _)) => {
            dial.choice.route = route;
            dial.choice.backend = 0;
            dial.choice.silent = 0;
            dial.choice.offset = 0;
            Ok(())
        }
        Err(reason) => Err(Exit::refused(reason)),
    }
}

/// Fills the key for wildcards. Only bytes within its length are compared, so the bytes that an earlier
/// packet left after them do not matter.
#[inline(always)]
fn reverse(key: &mut SuffixKey, listener: u32, name: Name<'_>) {
    key.prefix_bits = 16 + 8 * u32::from(name.length);
    key.listener = (listener as u16).to_be_bytes();
    reverse_each(name.bytes, key, name.length.into());
}

looped! {
    /// Reverses eight bytes.
    fn reverse_each(& name: [u8; NAME_BUFFER], key: SuffixKey; length: u64) times 32, |round| {
        let at = round * 8;
        let mut i = 0;
        while i < 8 {
            if let Some(to) = key.reversed.get_mut((at + i) as usize) {
                *to = route_key::reversed_byte(name, length as u8, at + i);
            }
            i += 1;
        }
        u64::from(at) + 8 >= length
    }
}
