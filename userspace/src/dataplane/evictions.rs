//! Hellos that gave way, as the programs report them.

use std::os::fd::{AsRawFd, RawFd};

use aya::maps::{Map, MapData, MapError, RingBuf};
use common::maps::event::Expiry;
use common::maps::name;
use zerocopy::FromBytes;

use super::pin::Pins;

/// The reading end of `EVICTIONS`.
pub struct Evictions {
    ring: RingBuf<MapData>,
}

impl AsRawFd for Evictions {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Evictions {
    /// Opens the pinned ring.
    pub fn open(pins: &Pins) -> Result<Self, MapError> {
        let map = Map::from_map_data(MapData::from_pin(pins.map(name::EVICTIONS))?)?;
        Ok(Self { ring: map.try_into()? })
    }

    /// The next record, if there is one.
    pub fn take(&mut self) -> Option<Expiry> {
        loop {
            let item = self.ring.next()?;
            // A record of another size is not ours; the ABI version rules it out.
            if let Ok(expiry) = Expiry::read_from_bytes(&item) {
                return Some(expiry);
            }
        }
    }
}
