//! The work done before there is the right to write.

use std::sync::Arc;

use super::checks::{check_forwarding, refuse_errors};
use super::devices::Choice;
use super::egress::Egress;
use crate::dataplane::load::{self, LoadError, Programs};
use crate::dataplane::pin::{PinError, Pins};
use crate::dataplane::swept::Swept;
use crate::outputs::health::HealthSender;
use crate::outputs::l2::{Foreign, ServedSender};
use crate::outputs::{Order, StartError};
use crate::plan;

/// How the maps are written.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where maps, programs and links are pinned.
    pub pins: Pins,
    /// Devices to serve on if the operator names none.
    pub unnamed: Choice,
    /// Refuse a configuration that cannot be carried out completely, instead of doing the rest.
    pub is_strict: bool,
    /// Where to report what is served; `None`: nobody asks.
    pub served: Option<ServedSender>,
    /// The addresses that other hosts have.
    pub foreign: Foreign,
    /// Where to report to which endpoints on the node the maps lead; `None`: nobody asks.
    pub health: Option<HealthSender>,
    /// Where to say what sweeps through all connections found.
    pub swept: Swept,
}

/// The work done in advance, so that the node waits for nothing once there is the right to write.
#[derive(Debug)]
pub(super) struct Prepared {
    /// As in [`Options`].
    pub(super) is_strict: bool,
    pub(super) egress: Egress,
    /// Loaded if maps are pinned. Otherwise loading would create maps, which only the writer may do.
    pub(super) programs: Option<Programs>,
}

impl Prepared {
    /// Does everything that does not need the right to write: loads the programs if maps are pinned. What the
    /// node cannot do of the desired state is reported later, and the rest is still done.
    fn leniently(pins: &Pins, choice: Choice, order: &Order) -> Result<Self, StartError> {
        let programs = match load::need_version(pins) {
            Ok(()) => Some(Programs::load(pins, (&order.desired.settings).into())?),
            // Nothing is pinned, or another start is creating maps: left to the holder of the right to write.
            Err(LoadError::Pin(PinError::Nothing(_)) | LoadError::Abi { found: 0, .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { is_strict: false, egress: Egress::new(choice, Arc::clone(&order.node.network)), programs })
    }

    /// Checks that the configuration fits this node. Changes nothing.
    fn strictly(choice: Choice, order: &Order) -> Result<Self, StartError> {
        let desired = &order.desired;
        let is_named = matches!(choice, Choice::Named(_));
        let mut egress = Egress::new(choice, Arc::clone(&order.node.network));
        egress.find(desired)?;
        let chosen = egress.chosen();
        if is_named && !chosen.unusable.is_empty() {
            return Err(StartError::Devices(chosen.unusable.clone()));
        }
        check_forwarding(egress.node(), &chosen.devices, desired)?;
        refuse_errors(&plan::impossible(desired, egress.hops()))?;
        Ok(Self { is_strict: true, egress, programs: None })
    }

    /// Checks everything that can be refused before anything is changed. Then creates the pin folder.
    pub(super) fn new(options: &Options, order: &Order) -> Result<Self, StartError> {
        let choice = options.unnamed.clone().or_named(&order.node.devices);
        let prepared = match options.is_strict {
            true => Self::strictly(choice, order)?,
            false => Self::leniently(&options.pins, choice, order)?,
        };
        options.pins.prepare()?;
        Ok(prepared)
    }
}
