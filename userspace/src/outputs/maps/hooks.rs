//! Where our programs are: TCX, XDP in front of it, and those of the pair by which clients on the node itself come.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{info, warn};

use super::drift::Drift;
use super::fronts::Fronts;
use super::node_clients::NodeClients;
use super::prepared::Options;
use crate::dataplane::attach;
use crate::dataplane::load::Programs;
use crate::dataplane::pin::{PinError, Pins};
use crate::model::{Node, Problem};
use crate::outputs::Order;

/// Where our programs are.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// Devices that have the TCX program, and lead to what is served.
    pub(super) tcx: BTreeSet<u32>,
    /// Those of them that lost it to another program, and could not get it back: XDP would answer there, with nothing behind it.
    bare: BTreeSet<u32>,
    /// XDP.
    fronts: Fronts,
    /// The pair by which clients on the node itself come.
    pub(super) node_clients: NodeClients,
}

impl Hooks {
    /// Nothing is attached but what an earlier daemon left for clients on the node.
    pub(super) fn found(options: &Options, order: &Order) -> Self {
        let mut node_clients = NodeClients::found(&options.pins, options.foreign.clone());
        node_clients.note(order);
        Self { node_clients, ..Self::default() }
    }

    /// Detaches the TCX program from every device that neither is one of these nor the pair's, including those of an earlier start.
    pub(super) fn leave(&self, keep: &BTreeSet<u32>, node: &Node, pins: &Pins) -> Result<(), PinError> {
        for index in pins.linked_devices()? {
            if !keep.contains(&index) && self.node_clients.far() != Some(index) {
                attach::detach(pins, index)?;
                info!(device = node.name(index), "detached");
            }
        }
        Ok(())
    }

    /// Attaches XDP to those of the devices with these names that have TCX, and are among `chosen`, and detaches it from all others.
    /// Returns what there is to say of it.
    pub(super) fn follow(
        &mut self,
        names: &[Arc<str>],
        node: &Node,
        chosen: &BTreeSet<u32>,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Vec<Problem> {
        self.fronts.follow(names, node, &self.served(chosen), programs, pins)
    }

    /// Devices that have what goes on with what XDP answers.
    fn served(&self, chosen: &BTreeSet<u32>) -> BTreeSet<u32> {
        &(&self.tcx & chosen) - &self.bare
    }

    /// Attaches the TCX program again to devices that lost it. Returns to how many. [`Self::look_again`] then detaches XDP from those
    /// where it could not.
    pub(super) fn look_at_tcx(
        &mut self,
        drift: &mut Drift,
        programs: &mut Programs,
        pins: &Pins,
        node: &Node,
    ) -> usize {
        drift.look_at_devices(&self.tcx, &mut self.bare, programs, pins, node)
    }

    /// Detaches XDP from devices whose other end takes nothing of what it answers, or that have lost TCX. If `is_whole`, attaches it again
    /// to devices that lost it, and tries again what was refused when it is time to. Returns to how many devices, and what there is to say
    /// of it now; `None`: there was nothing to do. `chosen` as in [`Self::follow`]. To be called about each second.
    pub(super) fn look_again(
        &mut self,
        is_whole: bool,
        names: &[Arc<str>],
        node: &Node,
        chosen: &BTreeSet<u32>,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Option<(usize, Vec<Problem>)> {
        let is_unanswered = self.fronts.finds_unanswered(names, node);
        let own = programs.front_id();
        let lost = if is_whole { self.fronts.take_lost(pins, own) } else { BTreeSet::new() };
        for index in &lost {
            let device = node.name(*index);
            warn!(
                device,
                "XDP was detached or replaced by another program: find out which; without XDP all is served, too"
            );
        }
        let served = self.served(chosen);
        let is_other = !self.fronts.are_for(&served);
        if !is_unanswered && !is_other && lost.is_empty() && !(is_whole && self.fronts.is_due()) {
            return None;
        }
        let found = self.fronts.follow(names, node, &served, programs, pins);
        let is_back = |index: &&u32| self.fronts.are_on(**index);
        Some((lost.iter().filter(is_back).count(), found))
    }
}
