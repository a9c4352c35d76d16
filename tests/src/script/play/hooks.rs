//! The programs that a script's packets meet, and what they count.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use common::reason::Reason;

use super::Player;
use crate::addresses::{TLS_PORT, client, vip};
use crate::packet::segment;
use crate::world::Device;

/// The programs that clients' packets meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// TCX alone.
    Tcx,
    /// XDP, and TCX what passes it.
    XdpAndTcx,
}

/// What XDP counts in place of TCX.
const COUNTED_BY_XDP: [(Reason, Reason); 2] =
    [(Reason::XdpAnswered, Reason::SynAnswered), (Reason::XdpNoListener, Reason::ClassifyNoListener)];

/// Returns what was counted, but for zeros, as TCX counts it.
pub(super) fn as_tcx_counts(counted: impl Iterator<Item = (Reason, u64)>) -> Vec<(Reason, u64)> {
    let mut moved: BTreeMap<Reason, u64> = BTreeMap::new();
    for (reason, count) in counted.filter(|(_, count)| *count != 0) {
        let by_xdp = COUNTED_BY_XDP.iter().find(|(xdp, _)| *xdp == reason);
        *moved.entry(by_xdp.map_or(reason, |(_, tcx)| *tcx)).or_default() += count;
    }
    moved.into_iter().collect()
}

impl Player<'_> {
    /// Has TCX answer another client: in each unit of time XDP leaves the first answer to it, and gives those that follow, unless the unit
    /// ends in between.
    pub(super) fn let_tcx_answer(&mut self) -> Result<()> {
        let (before, by_xdp) = (self.programs.counters(), self.by_xdp());
        let other = segment((client(self.family), 1).into(), (vip(self.family), TLS_PORT).into())
            .ethernet(Device::Client.near_mac(), Device::Client.far_mac())
            .syn(1);
        self.programs.world.send(Device::Client, &other.bytes()).context("sending")?;
        let answers = self.programs.world.drain();
        ensure!(answers.len() == 1, "another client's SYN got {answers:?}");
        self.others += self.by_xdp() - by_xdp;
        for (reason, count) in self.programs.counters() {
            *self.counted.entry(reason).or_default() += count - before[&reason];
        }
        Ok(())
    }

    /// Returns how many packets XDP has answered.
    pub(super) fn by_xdp(&self) -> u64 {
        let counted = self.programs.counters();
        COUNTED_BY_XDP.iter().map(|(reason, _)| counted[reason]).sum()
    }
}
