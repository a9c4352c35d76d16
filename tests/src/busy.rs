//! The mark of a run that uses the programs' working memory (`SCRATCH`, or `FRONT`), as another packet on the same CPU leaves it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::MapData;
use common::maps::name;

use crate::program::Programs;
use crate::schedule::{Element, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, bpf};

impl Programs {
    /// Sets or clears the mark on every CPU.
    pub fn set_busy(&mut self, busy: bool) {
        self.set_busy_in(name::SCRATCH, busy);
    }

    /// The same for the working memory of XDP (`FRONT`).
    pub fn set_front_busy(&mut self, busy: bool) {
        self.set_busy_in(name::FRONT, busy);
    }

    fn set_busy_in(&mut self, memory: &str, busy: bool) {
        let bytes = self.maps().iter().find(|map| map.name == memory).expect("it is there").value_bytes;
        set(self.map_fd(memory), bytes, busy).expect("the map takes its elements");
    }
}

/// Sets or clears the mark on every CPU, in a pinned map.
pub fn set_pinned_busy(pins: &Path, busy: bool) -> Result<()> {
    let path = pins.join(name::SCRATCH);
    let data = MapData::from_pin(&path).with_context(|| format!("opening {}", path.display()))?;
    let bytes = data.info()?.value_size();
    set(data.fd().as_fd(), bytes, busy)
}

/// The mark is the first four bytes of each CPU's element.
fn set(map: BorrowedFd<'_>, value_bytes: u32, busy: bool) -> Result<()> {
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?.get() as usize;
    let stride = (value_bytes as usize).next_multiple_of(8);
    let (key, mut values) = (0u32, vec![0u8; stride * cpus]);
    let element = Element {
        map: map.as_raw_fd(),
        key: std::ptr::from_ref(&key) as u64,
        value: values.as_mut_ptr() as u64,
        ..Element::default()
    };
    bpf(MAP_LOOKUP_ELEM, &element).context("reading")?;
    for value in values.chunks_mut(stride) {
        value[..4].copy_from_slice(&u32::from(busy).to_ne_bytes());
    }
    bpf(MAP_UPDATE_ELEM, &element).context("writing")?;
    Ok(())
}
