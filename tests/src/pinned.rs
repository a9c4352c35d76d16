//! Maps, programs and links that are pinned, as another program finds them.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::ProgramInfo;
use aya::programs::links::{FdLink, LinkType, PinnedLink};

use crate::net::Namespace;
use crate::schedule::{bpf, owned};

/// Returns every entry of a pinned hash map.
pub fn pinned_entries<K: Pod, V: Pod>(path: &Path) -> Result<Vec<(K, V)>> {
    let data = MapData::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("{} is of no known type", path.display()))?;
    let map: HashMap<_, K, V> = map.try_into().context("not a hash map of these types")?;
    // An entry that is removed while we read is skipped.
    Ok(map.iter().filter_map(Result::ok).collect())
}

/// Deletes every entry of a pinned hash map. Returns how many there were.
pub fn clear_pinned<K: Pod, V: Pod>(path: &Path) -> Result<usize> {
    let entries = pinned_entries::<K, V>(path)?;
    for (key, _) in &entries {
        remove_pinned::<K, V>(path, *key)?;
    }
    Ok(entries.len())
}

/// Deletes an entry of a pinned hash map.
pub fn remove_pinned<K: Pod, V: Pod>(path: &Path, key: K) -> Result<()> {
    let data = MapData::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("{} is of no known type", path.display()))?;
    let mut map: HashMap<_, K, V> = map.try_into().context("not a hash map of these types")?;
    map.remove(&key).with_context(|| format!("deleting from {}", path.display()))
}

/// Opens a pinned link.
pub fn open_link(pin: &Path) -> Result<OwnedFd> {
    /// include/uapi/linux/bpf.h
    const BPF_OBJ_GET: libc::c_int = 7;
    let path = CString::new(pin.as_os_str().as_bytes())?;
    owned(BPF_OBJ_GET, &[path.as_ptr() as u64, 0]).with_context(|| format!("opening {}", pin.display()))
}

/// Detaches what a pinned link attaches, as `bpftool link detach` does. The pin stays.
pub fn detach_link(pin: &Path) -> Result<()> {
    /// include/uapi/linux/bpf.h
    const BPF_LINK_DETACH: libc::c_int = 34;
    let link = open_link(pin)?;
    bpf(BPF_LINK_DETACH, &[link.as_raw_fd()])
        .with_context(|| format!("detaching {}", pin.display()))
        .map(drop)
}

/// Stores an entry of a pinned hash map.
pub fn insert_pinned<K: Pod, V: Pod>(path: &Path, key: K, value: V) -> Result<()> {
    let data = MapData::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("{} is of no known type", path.display()))?;
    let mut map: HashMap<_, K, V> = map.try_into().context("not a hash map of these types")?;
    map.insert(&key, &value, 0).with_context(|| format!("writing to {}", path.display()))
}

/// Returns every element of a pinned array.
pub fn pinned_elements<V: Pod>(path: &Path) -> Result<Vec<V>> {
    let data = MapData::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("{} is of no known type", path.display()))?;
    let map: Array<_, V> = map.try_into().context("not an array of this type")?;
    map.iter().collect::<Result<_, _>>().with_context(|| format!("reading {}", path.display()))
}

/// Returns an element of a pinned array that each CPU has its own of, by CPU.
pub fn pinned_by_cpu<V: Pod>(path: &Path, index: u32) -> Result<Vec<V>> {
    let data = MapData::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("{} is of no known type", path.display()))?;
    let map: PerCpuArray<_, V> = map.try_into().context("not an array of this type by CPU")?;
    let values = map.get(&index, 0).with_context(|| format!("reading {}", path.display()))?;
    Ok(values.to_vec())
}

/// Writes an element of a pinned array.
pub fn set_pinned<V: Pod>(path: &Path, index: u32, value: V) -> Result<()> {
    let data = MapData::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("{} is of no known type", path.display()))?;
    let mut map: Array<_, V> = map.try_into().context("not an array of this type")?;
    map.set(index, &value, 0).with_context(|| format!("writing to {}", path.display()))
}

/// Returns the kernel's ID of a pinned program.
pub fn pinned_program(path: &Path) -> Result<u32> {
    let info = ProgramInfo::from_pin(path);
    Ok(info.with_context(|| format!("opening {}", path.display()))?.id())
}

/// Returns the kernel's IDs of a pinned XDP link and of the program in it.
pub fn pinned_xdp_link(path: &Path) -> Result<(u32, u32)> {
    let link = PinnedLink::from_pin(path).with_context(|| format!("opening {}", path.display()))?;
    let info = FdLink::from(link).info()?;
    anyhow::ensure!(info.link_type()? == LinkType::Xdp, "{} is no XDP link", path.display());
    Ok((info.id(), info.program_id()))
}

/// Returns the path of our XDP link on the device with this index.
pub fn xdp_pin(pins: &Path, index: u32) -> PathBuf {
    pins.join(format!("links/xdp-{index}"))
}

/// Returns the XDP program on a device, as rtnetlink reports it: its mode, of which 1 is the driver's, and the kernel's ID of it.
pub fn xdp_on(namespace: &Namespace, device: &str) -> Result<Option<(u64, u64)>> {
    let output = namespace.command("ip").args(["-j", "link", "show", "dev", device]).output()?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("reading what `ip` shows of {device}"))?;
    Ok(links[0].get("xdp").and_then(|xdp| Some((xdp["mode"].as_u64()?, xdp["prog"]["id"].as_u64()?))))
}

/// Has the kernel confirm that our XDP program is on a device, by a link and in the driver. Returns its IDs of link and program.
pub fn xdp_in_driver(pins: &Path, namespace: &Namespace, device: &str) -> Result<(u32, u32)> {
    let (link, program) = pinned_xdp_link(&xdp_pin(pins, namespace.ifindex(device)?))?;
    let shown = xdp_on(namespace, device)?;
    anyhow::ensure!(
        shown == Some((1, u64::from(program))),
        "{device} shows {shown:?} as (mode, program), and not the driver's mode and our program {program}"
    );
    Ok((link, program))
}
