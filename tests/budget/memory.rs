//! Memory of the maps: bytes per entry, and the total at the default capacities.

use common::maps::name;
use tests::program;
use tests::program::{MapFacts, MapKind, Programs, Sizes};
use userspace::dataplane::{memory, sizes};
use userspace::model::facts::Settings;

/// Bytes per entry in the kernel: key and value, each rounded up to eight bytes, plus what the map adds.
const ENTRY_BYTES: [(&str, u64); 18] = [
    (name::FLOWS, 216),
    (name::NATS, 128),
    (name::DNAT_FLOWS, 104),
    (name::PENDING, 536),
    (name::BUFFERS, 2096),
    (name::SOURCES, 80),
    (name::SHARES, 80),
    (name::HALF_OPENS, 192),
    (name::HALF_OPEN_RING, 48),
    (name::CLOSED_RING, 48),
    (name::ROUTES_EXACT, 120),
    (name::ROUTES_LONG, 312),
    (name::ROUTES, 88),
    (name::MAGLEV, 184),
    (name::MEMBERS, 64),
    (name::BACKENDS, 104),
    (name::LABELS, 184),
    (name::ROUTE_COUNTERS, 88),
];

/// Maximum for what is allocated before the first packet, at the default capacities: preallocated maps, and the buckets of all others.
const AT_ONCE_BYTES: u64 = 776 << 20;
/// Maximum for these and for the maps that grow with the configuration, with every map full.
const FULL_BYTES: u64 = 2867 << 20;

/// Maximum that the maps may take for an idle connection.
const IDLE_BYTES: f64 = 420.0;

/// Bytes of `struct htab_elem`, and of a bucket (kernel/bpf/hashtab.c).
const HASH_ENTRY: u64 = 48;
const HASH_BUCKET: u64 = 16;
/// Bytes of `struct lpm_trie_node` (kernel/bpf/lpm_trie.c); a full trie has nearly as many inner nodes as entries.
const TRIE_NODE: u64 = 32;

fn round8(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(8)
}

/// Bytes of one entry.
fn entry_bytes(map: &MapFacts) -> u64 {
    match map.kind {
        MapKind::Hash => HASH_ENTRY + round8(map.key_bytes) + round8(map.value_bytes),
        MapKind::Trie => 2 * (TRIE_NODE + round8(map.key_bytes) + round8(map.value_bytes)),
        MapKind::Array => round8(map.value_bytes),
        MapKind::PerCpuArray => round8(map.value_bytes) * map.cpus,
        MapKind::Ring => 1,
    }
}

/// Bytes of a full map with this many entries.
fn map_bytes(map: &MapFacts, entries: u32) -> u64 {
    let buckets =
        if map.kind == MapKind::Hash { u64::from(entries.next_power_of_two()) * HASH_BUCKET } else { 0 };
    u64::from(entries) * entry_bytes(map) + buckets
}

#[test]
fn entries_cost_what_the_table_says() {
    tests::skip_without_root!();
    let maps = Programs::load().unwrap().maps();
    for (name, bytes) in ENTRY_BYTES {
        let map = maps.iter().find(|map| map.name == name).unwrap_or_else(|| panic!("no map {name}"));
        assert_eq!(entry_bytes(map), bytes, "bytes of an entry of {name}");
    }
}

#[test]
fn the_kernel_counts_as_we_do() {
    tests::skip_without_root!();
    let sizes = Sizes { flows: 8192, hellos: 2048, ..Sizes::default() };
    let maps = Programs::with_sizes(sizes).unwrap().maps();
    for map in maps.iter().filter(|map| map.preallocated && map.entries > 1000 && map.kind != MapKind::Ring) {
        let (ours, kernels) = (map_bytes(map, map.entries), map.kernel_bytes);
        let slack = 65_536 + kernels / 50;
        assert!(
            ours.abs_diff(kernels) < slack,
            "{}: {ours} by our count, {kernels} by the kernel's",
            map.name
        );
    }
}

/// Every map whose size depends on the settings, with its number of entries at the default capacities.
fn default_capacities() -> [(&'static str, u32); 19] {
    let Settings { max_flows, max_names, max_hellos, .. } = Settings::default();
    sizes::Sizes { flows: max_flows, names: max_names, hellos: max_hellos }.maps()
}

#[test]
fn an_idle_connection_keeps_within_its_budget() {
    tests::skip_without_root!();
    let maps = Programs::load().unwrap().maps();
    let capacities = default_capacities();
    let bytes = |name| {
        let map = maps.iter().find(|map| map.name == name).unwrap_or_else(|| panic!("no map {name}"));
        let (_, entries) = capacities.iter().find(|(sized, _)| *sized == name).expect("its size is set");
        // Includes the entry's share of the buckets.
        map_bytes(map, *entries) as f64 / f64::from(*entries)
    };
    let (flow, nat) = (bytes(name::FLOWS), bytes(name::NATS));
    // Not listed, unless its backend sees its client: of that map, it has its share of the buckets.
    let listed = maps.iter().find(|map| map.name == name::DNAT_FLOWS).expect("it is there");
    assert!(!listed.preallocated);
    let entries = |name| capacities.iter().find(|(sized, _)| *sized == name).expect("its size is set").1;
    let (most, flows) = (entries(name::DNAT_FLOWS), entries(name::FLOWS));
    let buckets = map_bytes(listed, most) - u64::from(most) * entry_bytes(listed);
    let list = buckets as f64 / f64::from(flows);
    let all = flow + nat + list;
    println!(
        "an idle connection: {flow:.1} bytes of FLOWS, {nat:.1} of NATS, {list:.1} of DNAT_FLOWS, {all:.1} in all; {} more if it is listed",
        entry_bytes(listed)
    );
    assert!(all <= IDLE_BYTES, "{all} bytes");
}

#[test]
fn all_maps_at_the_default_capacities_keep_within_their_budget() {
    tests::skip_without_root!();
    let capacities = default_capacities();
    let (mut at_once, mut full) = (0, 0);
    println!("{:16} {:>10} {:>12} {:>12}", "map", "entries", "bytes/entry", "MiB");
    for map in Programs::load().unwrap().maps() {
        let sized = capacities.iter().find(|(name, _)| *name == map.name).map(|(_, entries)| *entries);
        let entries = sized.unwrap_or(map.entries);
        // A name is in ROUTES_EXACT or in ROUTES_LONG. All are counted in the latter, whose entries are larger.
        let stored = if map.name == name::ROUTES_EXACT { 0 } else { entries };
        let bytes = map_bytes(&map, entries) - u64::from(entries - stored) * entry_bytes(&map);
        println!(
            "{:16} {entries:>10} {:>12} {:>12.1}",
            map.name,
            entry_bytes(&map),
            bytes as f64 / f64::from(1 << 20)
        );
        full += bytes;
        let buckets = map_bytes(&map, entries) - u64::from(entries) * entry_bytes(&map);
        at_once += if map.preallocated { bytes } else { buckets };
    }
    println!("at once {} MiB, with every map full {} MiB", at_once >> 20, full >> 20);
    assert!(at_once <= AT_ONCE_BYTES, "{at_once} bytes before the first packet");
    assert!(full <= FULL_BYTES, "{full} bytes with every map full");
}

/// What `vestibule check` says, and `vestibule run` compares with what is available.
#[test]
fn the_memory_that_is_foretold_is_what_the_kernel_takes() {
    tests::skip_without_root!();
    let object = program::object().unwrap();
    let maps = Programs::load().unwrap().maps();
    let foretold = |flows, names, hellos| memory::of(&object, sizes::Sizes { flows, names, hellos }).unwrap();
    // The ring, the shares and the list as a daemon sizes them.
    let sizes =
        Sizes { flows: 65_536, hellos: 2048, names: 4096, closed: 8192, shares: 16_384, dnat_flows: 16_384 };
    let kernels: u64 = Programs::with_sizes(sizes).unwrap().maps().iter().map(|map| map.kernel_bytes).sum();
    let ours = foretold(65_536, 4096, 2048).at_once;
    println!("{ours} bytes at once by our count, {kernels} by the kernel's");
    assert!(ours.abs_diff(kernels) < kernels / 50, "{ours} by our count, {kernels} by the kernel's");
    // When all are full, as the budget above counts.
    let capacities = default_capacities();
    let full: u64 = maps
        .iter()
        .map(|map| {
            let sized = capacities.iter().find(|(name, _)| *name == map.name).map(|(_, entries)| *entries);
            let entries = sized.unwrap_or(map.entries);
            let stored = if map.name == name::ROUTES_EXACT { 0 } else { entries };
            map_bytes(map, entries) - u64::from(entries - stored) * entry_bytes(map)
        })
        .sum();
    let Settings { max_flows, max_names, max_hellos, .. } = Settings::default();
    let ours = foretold(max_flows, max_names, max_hellos).full;
    assert!(ours.abs_diff(full) < 1 << 20, "{ours} by `check`, {full} by the budget");
}
