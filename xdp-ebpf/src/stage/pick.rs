//! From the route to a backend: see `common::decide::pick`.

use common::decide::pick;

use crate::exit::Exit;
use crate::maps::Maps;
use crate::scratch::{Dial, Received};
use crate::verified::verified;

verified! {
    /// Picks the backend to try next, and puts it in `dial.choice` and `dial.connection`.
    pub(crate) fn next as pick_next(received: Received, dial: Dial) -> Result<(), Exit> {
        pick::pick(&Maps, &mut dial.choice, &received.client).map_err(Exit::refused)?;
        dial.connection.listener = dial.listener.id;
        dial.connection.route = dial.choice.route;
        dial.connection.backend = dial.choice.backend;
        Ok(())
    }
}
