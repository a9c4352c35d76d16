//! Reads what the programs report: evictions of waiting hellos, and flows that a RST put on trial.

use std::io;

use aya::maps::{Map, MapData, RingBuf};
use common::maps::event::Expiry;
use common::maps::flow::ClientTuple;
use common::maps::name;
use tokio::io::unix::AsyncFd;
use zerocopy::FromBytes;

use super::pin::Pins;

/// What a program reported.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// A hello was evicted: its client is to be reset.
    Evicted(Expiry),
    /// This client's flow is on trial.
    OnTrial(ClientTuple),
}

impl Notice {
    /// Returns what a record says; `None`: it is of a size that no record has.
    fn of(record: &[u8]) -> Option<Self> {
        let evicted = Expiry::read_from_bytes(record).map(Self::Evicted);
        evicted.or_else(|_| ClientTuple::read_from_bytes(record).map(Self::OnTrial)).ok()
    }
}

/// The reader of the ring buffer `EVICTIONS`.
pub struct Evictions {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Evictions {
    /// Opens the pinned ring buffer. Must be called within a runtime.
    pub fn open(pins: &Pins) -> io::Result<Self> {
        let data = MapData::from_pin(pins.map(name::EVICTIONS)).map_err(io::Error::other)?;
        let map = Map::from_map_data(data).map_err(io::Error::other)?;
        let ring: RingBuf<MapData> = map.try_into().map_err(io::Error::other)?;
        // SAFETY: the ring owns its descriptor, which stays open and unchanged until the ring is dropped.
        let ring = unsafe { AsyncFd::register(ring) }?;
        Ok(Self { ring })
    }

    /// Waits for the next record. Cancel safe: no record is lost.
    pub async fn next(&mut self) -> io::Result<Notice> {
        loop {
            while let Some(item) = self.ring.get_mut().next() {
                // Another size: the check of the ABI version rules this out.
                if let Some(notice) = Notice::of(&item) {
                    return Ok(notice);
                }
            }
            self.ring.readable_mut().await?.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};
    use zerocopy::IntoBytes;

    #[test]
    fn records_are_known_by_their_sizes() {
        let client =
            ClientTuple::tcp(Address::v4([192, 0, 2, 1]), Address::default(), Port::new(7), Port::new(443));
        let expiry = Expiry { client, seq: 5, reason: 9, generation: 1, seen_secs: 0 };
        assert!(matches!(Notice::of(client.as_bytes()), Some(Notice::OnTrial(of)) if of == client));
        assert!(
            matches!(Notice::of(expiry.as_bytes()), Some(Notice::Evicted(of)) if of.client == client && of.seq == 5)
        );
        assert!(Notice::of(&[0; 48]).is_none());
    }
}
