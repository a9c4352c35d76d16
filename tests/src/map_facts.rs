//! What the kernel reports about the maps of loaded programs.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use aya::maps::Map;

/// How a map stores its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    Hash,
    Trie,
    Array,
    PerCpuArray,
    Ring,
}

/// What the kernel reports about a map.
#[derive(Clone, Debug)]
pub struct MapFacts {
    pub name: String,
    pub kind: MapKind,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub entries: u32,
    /// Whether memory for every entry is allocated when the map is created.
    pub preallocated: bool,
    /// Memory that the map uses now, in bytes, as counted by the kernel.
    pub kernel_bytes: u64,
    /// The number of possible CPUs.
    pub cpus: u64,
}

impl MapFacts {
    pub(crate) fn of(name: &str, map: &Map) -> Result<Self> {
        /// include/uapi/linux/bpf.h
        const BPF_F_NO_PREALLOC: u32 = 1;
        let (kind, data) = match map {
            Map::HashMap(data) => (MapKind::Hash, data),
            Map::LpmTrie(data) => (MapKind::Trie, data),
            Map::Array(data) => (MapKind::Array, data),
            Map::PerCpuArray(data) => (MapKind::PerCpuArray, data),
            Map::RingBuf(data) => (MapKind::Ring, data),
            other => anyhow::bail!("{name} is of no kind we use: {other:?}"),
        };
        let info = data.info()?;
        let fdinfo = format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd());
        let fdinfo = std::fs::read_to_string(&fdinfo).with_context(|| format!("reading {fdinfo}"))?;
        let memlock = fdinfo.lines().find_map(|line| line.strip_prefix("memlock:"));
        Ok(Self {
            name: name.into(),
            kind,
            key_bytes: info.key_size(),
            value_bytes: info.value_size(),
            entries: info.max_entries(),
            preallocated: info.map_flags() & BPF_F_NO_PREALLOC == 0,
            kernel_bytes: memlock.context("no memlock in fdinfo")?.trim().parse()?,
            cpus: aya::util::nr_cpus()
                .map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?
                .get()
                .into(),
        })
    }
}
