//! Entries of `NATS` whose connection is gone. The programs remove an entry with the record of its connection, so there
//! are none, unless a map was changed by hand. Nobody else would ever free their source ports.

use common::maps::flow::{BackendTuple, Reply};

use super::maps::Maps;
use super::table::TableError;

/// Time between two walks, in seconds.
const PERIOD_SECS: u32 = 600;

/// The entries found by the last walk, and when that was (monotonic clock, seconds).
#[derive(Debug, Default)]
pub(super) struct Orphans {
    suspects: Vec<(BackendTuple, Reply)>,
    walked_secs: Option<u32>,
}

impl Orphans {
    /// Removes the entries that had no connection at the last call either, and looks for others if it is time to.
    /// Returns the number of removed ones. A program claims an entry just before it stores the connection, so an entry
    /// without a connection is no orphan yet.
    pub(super) fn sweep(&mut self, maps: &Maps, now: u32) -> Result<u32, TableError> {
        let mut removed = 0;
        for (nat, reply) in std::mem::take(&mut self.suspects) {
            if maps.nats.look_up(&nat)? == Some(reply) && !has_connection(maps, &reply)? {
                removed += u32::from(maps.nats.remove(&nat)?);
            }
        }
        if self.walked_secs.is_some_and(|walked| now.saturating_sub(walked) < PERIOD_SECS) {
            return Ok(removed);
        }
        self.walked_secs = Some(now);
        let mut failed = Ok(());
        maps.nats.walk(|nat, reply| match has_connection(maps, reply) {
            Ok(true) => {}
            Ok(false) => self.suspects.push((*nat, *reply)),
            Err(error) => failed = Err(error),
        })?;
        failed.map(|()| removed)
    }
}

/// Whether there is a record of the connection that the entry was made for.
fn has_connection(maps: &Maps, reply: &Reply) -> Result<bool, TableError> {
    let (client, generation) = (reply.tuple(), reply.generation);
    let is_flow = || {
        Ok::<_, TableError>(
            maps.flows.look_up(&client)?.is_some_and(|flow| flow.connection.generation == generation),
        )
    };
    // Flows once more at the end: it may have become one meanwhile.
    Ok(is_flow()?
        || maps.hellos.look_up(&client)?.is_some_and(|hello| hello.connection.generation == generation)
        || maps.half_opens.look_up(&client)?.is_some_and(|half| half.connection.generation == generation)
        || is_flow()?)
}
