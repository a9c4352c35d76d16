//! What is left of connections that are gone.

use common::maps::event::Expiry;
use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, PENDING_UNDELIVERED};
use common::maps::settings::Settings;
use common::reason::Reason;

use super::maps::Maps;
use super::read::now_ns;
use super::request::{expiry, of_record};
use super::runner::{ExpireError, Runner};
use super::sources;

/// Removes counts of sources that are not needed, makes room for new ones, and removes undelivered bytes of flows that are gone. Returns how
/// many hellos these were, and whether counts had to make room: the map may soon be full again.
pub(super) fn sweep(maps: &Maps, runner: &Runner, settings: &Settings) -> Result<(u32, bool), ExpireError> {
    sources::sweep_waiting(maps, now_ns(), settings.hello_timeout_ns)?;
    let evicted = sources::sweep_shares(maps)?;
    let is_full = !evicted.is_empty();
    for share in evicted {
        let client = ClientTuple { client: share.source, ..ClientTuple::zeroed() };
        runner.run(&Expiry { seq: share.route, ..expiry(&client, Reason::ExpireShare) })?;
    }
    let mut owed = Vec::new();
    maps.hellos.walk(|client, hello| {
        if hello.connection.state == PENDING_UNDELIVERED {
            owed.push(of_record(client, &hello.connection, Reason::ExpireHello));
        }
    })?;
    let mut done = 0;
    for order in owed {
        let flow = maps.flows.look_up(&order.client)?;
        if flow.is_none_or(|flow| flow.connection.state != FLOW_ESTABLISHED) {
            done += u32::from(runner.run(&order)?);
        }
    }
    Ok((done, is_full))
}
