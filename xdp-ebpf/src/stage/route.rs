//! From the listener, and a server name if there is one, to the route: see `common::decide::route`.

use common::decide::route::{self, Name};
use common::decide::route_key::{self, Keys, NAME_BUFFER};
use common::maps::route::NAME_BYTES_MAX;
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
    match route::route(&Maps, &dial.listener, name, &mut dial.keys, each) {
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

/// Takes each byte of the name into the keys of patterns. Of the reversed name only the bytes within its length
/// are compared, so those that an earlier packet left after them do not matter.
#[inline(always)]
fn each(keys: &mut Keys, name: Name<'_>) {
    take_one(name.bytes, keys, name.length.into());
}

looped! {
    /// Takes a byte. Of several in a round, the verifier would follow each combination of dots.
    fn take_one(& name: [u8; NAME_BUFFER], keys: Keys; length: u64) times NAME_BYTES_MAX as u32, |at| {
        route_key::take(keys, name, length as u8, at);
        u64::from(at) + 1 >= length
    }
}
