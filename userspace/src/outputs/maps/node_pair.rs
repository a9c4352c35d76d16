//! Whose the pair for clients on the node itself is, and its end.

use std::io;
use std::thread;
use std::time::Duration;

use common::maps::backend::DELIVERY_NODE;
use common::maps::flow::Connection;
use common::maps::name;
use common::reason::Reason;
use tracing::{info, warn};

use crate::dataplane::attach::{self, AttachError};
use crate::dataplane::expire::{ExpireError, Expirer};
use crate::dataplane::hooks::{self, Hook};
use crate::dataplane::pin::{PinError, Pins};
use crate::dataplane::table::{Table, TableError};
use crate::net::NetError;
use crate::net::pair::{self, FAR, NEAR, Pair, PairError};

pub(super) const FIELD: &str = "settings.nodeClients";

/// How long the pair stays after its connections were reset: what is queued at a device goes with it.
const QUEUED: Duration = Duration::from_millis(50);

/// Why clients on the node do not reach VIPs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeClientsError {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Expire(#[from] ExpireError),
    #[error("which programs {FAR} has cannot be read: {0}")]
    Hooks(io::Error),
    #[error(
        "{NEAR} and {FAR} are of another instance of Vestibule: {0} is attached to {FAR} and is not of our pins"
    )]
    OtherInstance(String),
}

impl NodeClientsError {
    pub(super) fn remedy(&self) -> String {
        match self {
            Self::OtherInstance(_) => format!(
                "switch {FIELD} off in one of the two; if the other one is gone for good, `vestibule --pins ITS-FOLDER detach` \
                 removes it, or `ip link del {NEAR}` the pair alone"
            ),
            _ => format!("see `vestibule doctor`; `ip link del {NEAR}` removes the pair and its routes"),
        }
    }
}

/// Refuses a pair that another instance uses: both would change its routes for ever. `known`: the end of ours, as the maps say. A pair
/// without any program is what a start left that was interrupted, or an instance whose pins are gone.
pub(super) fn need_own(pair: Pair, known: Option<u32>, pins: &Pins) -> Result<(), NodeClientsError> {
    if known == Some(pair.far) || pins.linked_devices()?.contains(&pair.far) {
        return Ok(());
    }
    let others = hooks::programs(pair.far, Hook::TcxIngress).map_err(NodeClientsError::Hooks)?;
    match others.first() {
        Some(other) => {
            let name = other.name.as_deref().unwrap_or("a program");
            Err(NodeClientsError::OtherInstance(format!("{name} (id {})", other.id)))
        }
        None => Ok(()),
    }
}

/// Ends the connections of clients on the node, by reset: what their backends send would find no client any more.
fn end_connections(pins: &Pins, pair: Pair) -> Result<(), ExpireError> {
    let of_node = |_: &_, is: &Connection| (is.delivery == DELIVERY_NODE).then_some(Reason::ExpireRemoved);
    let ended = Expirer::open(pins, pair.far)?.reset_where(of_node)?;
    if ended.flows + ended.hellos + ended.half_opens > 0 {
        info!(flows = ended.flows, "connections of clients on the node itself are reset");
        thread::sleep(QUEUED);
    }
    Ok(())
}

/// Removes the pair with its routes and connections, then what the pins have of it. Returns whether there was one. A pair that these
/// pins know nothing of is another instance's.
pub(crate) fn leave(pins: &Pins) -> Result<bool, NodeClientsError> {
    let known = device(pins);
    let mut is_removed = false;
    if let Some(pair) = ours(pins, known)? {
        if let Err(error) = end_connections(pins, pair) {
            warn!(%error, "connections of clients on the node itself are not reset, and end by time");
        }
        pair::remove(pair)?;
        attach::detach(pins, pair.far)?;
        is_removed = true;
    }
    if known.is_some() {
        Table::<u32, u32>::open(pins.folder(), name::NODE_CLIENTS)?.put(&0, &0)?;
    }
    Ok(is_removed)
}

/// Returns the pair, if it is that of these pins: the program at its end is pinned there, or the maps name it.
fn ours(pins: &Pins, known: Option<u32>) -> Result<Option<Pair>, NodeClientsError> {
    let linked = pins.linked_devices()?;
    let found = match pair::find() {
        // Another program's device.
        Err(PairError::Taken(_)) => None,
        found => found?,
    };
    Ok(found.filter(|pair| known == Some(pair.far) || linked.contains(&pair.far)))
}

/// Returns the device that the maps name. A release before this one made none of it.
pub(super) fn device(pins: &Pins) -> Option<u32> {
    let table = Table::<u32, u32>::open(pins.folder(), name::NODE_CLIENTS).ok()?;
    table.look_up(&0).ok().flatten().filter(|device| *device != 0)
}
