//! Reads the evictions of waiting hellos that the programs report.

use std::io;

use aya::maps::{Map, MapData, RingBuf};
use common::maps::event::Expiry;
use common::maps::name;
use tokio::io::unix::AsyncFd;
use zerocopy::FromBytes;

use super::pin::Pins;

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
    pub async fn next(&mut self) -> io::Result<Expiry> {
        loop {
            while let Some(item) = self.ring.get_mut().next() {
                // A record of another size is not an `Expiry`. The check of the ABI version rules this out.
                if let Ok(expiry) = Expiry::read_from_bytes(&item) {
                    return Ok(expiry);
                }
            }
            self.ring.readable_mut().await?.clear_ready();
        }
    }
}
