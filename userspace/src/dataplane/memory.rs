//! The memory of the maps, from the object that holds them, before any of them is made.

use std::fs;

use aya_obj::Object;
use aya_obj::generated::bpf_map_type;
use common::maps::name;

use super::sizes::Sizes;
use super::table::possible_processors;

/// Bytes of `struct htab_elem`, and of a bucket (kernel/bpf/hashtab.c).
const HASH_ENTRY: u64 = 48;
const HASH_BUCKET: u64 = 16;
/// Bytes of `struct lpm_trie_node` (kernel/bpf/lpm_trie.c); a full trie has nearly as many inner nodes as entries.
const TRIE_NODE: u64 = 32;
/// Flag of a map whose entries are allocated one by one (include/uapi/linux/bpf.h).
const BPF_F_NO_PREALLOC: u32 = 1;

/// What all maps take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// As soon as they are made.
    pub at_once: u64,
    /// When each of them is full.
    pub full: u64,
    /// The part of `at_once` that `maxFlows` sizes.
    pub flows: u64,
}

/// Why the memory is not known.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The object cannot be read.
    #[error("the maps of this build cannot be read: {0}")]
    Object(#[from] aya_obj::ParseError),
    /// The kernel does not say what a per-CPU map is multiplied by.
    #[error("the number of processors is not known: {0}")]
    Processors(#[from] std::io::Error),
}

/// What makes up a map.
#[derive(Clone, Copy, Debug)]
struct Form {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    is_preallocated: bool,
}

impl Form {
    /// Returns the bytes of an empty map, and of a full one that holds `stored` entries.
    fn bytes(&self, stored: u32, processors: u64) -> (u64, u64) {
        let (key, value) = (round8(self.key), round8(self.value));
        let entries = u64::from(self.entries);
        let is = |kind: bpf_map_type| self.kind == kind as u32;
        if is(bpf_map_type::BPF_MAP_TYPE_HASH) {
            let buckets = entries.next_power_of_two() * HASH_BUCKET;
            let all = |entries: u64| buckets + entries * (HASH_ENTRY + key + value);
            return if self.is_preallocated {
                (all(entries), all(entries))
            } else {
                (buckets, all(stored.into()))
            };
        }
        if is(bpf_map_type::BPF_MAP_TYPE_LPM_TRIE) {
            return (0, entries * 2 * (TRIE_NODE + key + value));
        }
        let bytes = match self.kind {
            kind if kind == bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY as u32 => entries * value * processors,
            kind if kind == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32 => entries,
            _ => entries * value,
        };
        (bytes, bytes)
    }
}

fn round8(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(8)
}

/// Returns the memory of the maps of an object on this machine.
pub fn of(object: &[u8], sizes: Sizes) -> Result<Memory, MemoryError> {
    with_processors(object, sizes, possible_processors()? as u64)
}

fn with_processors(object: &[u8], sizes: Sizes, processors: u64) -> Result<Memory, MemoryError> {
    let object = Object::parse(object)?;
    let sized = sizes.maps();
    let mut memory = Memory::default();
    for (map, found) in &object.maps {
        let entries = sized.iter().find(|(name, _)| name == map).map(|(_, entries)| *entries);
        let form = Form {
            kind: found.map_type(),
            key: found.key_size(),
            value: found.value_size(),
            entries: entries.unwrap_or(found.max_entries()),
            is_preallocated: found.map_flags() & BPF_F_NO_PREALLOC == 0,
        };
        // A name is in `ROUTES_EXACT` or in `ROUTES_LONG`. All are counted in the latter, whose entries are larger.
        let stored = if map == name::ROUTES_EXACT { 0 } else { form.entries };
        let (at_once, full) = form.bytes(stored, processors);
        memory.at_once += at_once;
        memory.full += full;
        if super::sizes::setting(map) == "maxFlows" {
            memory.flows += at_once;
        }
    }
    Ok(memory)
}

/// Returns the bytes that the machine can give to new maps; `None`: it does not say so.
pub fn available() -> Option<u64> {
    available_of(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::OBJECT;

    const DEFAULT: Sizes = Sizes { flows: 1_000_000, names: 1_000_000, hellos: 65_536 };

    /// Ten million flows take some 5 GB.
    #[test]
    fn flows_take_their_memory_at_once() {
        let default = with_processors(OBJECT, DEFAULT, 4).unwrap();
        let many = with_processors(OBJECT, Sizes { flows: 13_000_000, ..DEFAULT }, 4).unwrap();
        let per_flow = (many.flows - default.flows) as f64 / 12e6;
        assert!((380.0..420.0).contains(&per_flow), "{per_flow} bytes a flow");
        assert_eq!(many.at_once - default.at_once, many.flows - default.flows);
        assert!(default.at_once < default.full && default.full < 2_867 << 20, "{default:?}");
        assert!((5_000_000_000..5_600_000_000).contains(&many.flows), "{many:?}");
    }

    #[test]
    fn what_is_available_is_read_from_what_the_kernel_writes() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  100 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!((available_of(meminfo), available_of("MemTotal: 5 kB\n")), (Some(20_480_000_000), None));
    }
}
