//! Reads the offloads of a device with the `ETHTOOL_*` ioctls, which every driver supports. Needs no library.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `SIOCETHTOOL` (linux/sockios.h).
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// The single-value commands (linux/ethtool.h).
const GET_RX_CHECKSUM: u32 = 0x14;
const GET_TX_CHECKSUM: u32 = 0x16;
const GET_FLAGS: u32 = 0x25;
/// A flag in the result of `GET_FLAGS`.
const FLAG_LRO: u32 = 1 << 15;

/// Commands that answer with lists (linux/ethtool.h): the number of names in a set, the names, and the features.
const GET_NAMES_COUNT: u32 = 0x37;
const GET_NAMES: u32 = 0x1b;
const GET_FEATURES: u32 = 0x3a;
/// The set with the names of features, `ETH_SS_FEATURES`; each name has 32 bytes.
const FEATURE_NAMES: u32 = 4;
/// The set with the names of a driver's statistics, `ETH_SS_STATS`, the command that answers with their values, of 64 bits each, and the
/// one that answers with the numbers of queues.
const STATISTIC_NAMES: u32 = 1;
const GET_STATISTICS: u32 = 0x1d;
const GET_CHANNELS: u32 = 0x3c;
/// A driver's statistics of one queue are fewer.
const STATISTICS_OF_QUEUE: usize = 16;
const NAME_WORDS: usize = 8;
/// Words of one `struct ethtool_get_features_block`, for 32 features: available, requested, active, never changed.
const BLOCK_WORDS: usize = 4;
const ACTIVE: usize = 2;

/// The feature by which the kernel chains received segments instead of merging them (`NETIF_F_GRO_FRAGLIST`).
pub const CHAINED_RECEIVE: &str = "rx-gro-list";

/// The feature by which the device merges segments so that they can be split again (`NETIF_F_GRO_HW`).
pub const HARDWARE_RECEIVE: &str = "rx-gro-hw";

/// The features by which the device takes VLAN tags off (`NETIF_F_HW_VLAN_CTAG_RX`), and receives only frames of the VLANs that are
/// configured above it (`NETIF_F_HW_VLAN_CTAG_FILTER`).
const TAGS_TAKEN: &str = "rx-vlan-hw-parse";
const TAGS_FILTERED: &str = "rx-vlan-filter";

/// `struct ifreq` with `ifr_data`; the union is 24 bytes on 64-bit machines.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut u32,
    rest: [u64; 2],
}

/// What a device does with packets before programs receive them, or after programs sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// The device verifies checksums of received packets.
    pub rx_checksum: bool,
    /// The device computes checksums of sent packets.
    pub tx_checksum: bool,
    /// The device merges segments irreversibly, so that they must not be forwarded.
    pub large_receive: bool,
    /// The device merges segments so that they can be split again.
    pub hardware_receive: bool,
    /// The kernel chains segments: rewriting the headers of a chain changes only those of its first segment.
    pub chained_receive: bool,
    /// The device takes VLAN tags off received frames, of any VLAN, and reports them beside the frame.
    pub tags_taken: bool,
}

/// Queries a device in the calling thread's network namespace.
pub fn offloads(device: &str) -> io::Result<Offloads> {
    Ok(Offloads {
        rx_checksum: ask(device, GET_RX_CHECKSUM)? != 0,
        tx_checksum: ask(device, GET_TX_CHECKSUM)? != 0,
        large_receive: ask(device, GET_FLAGS)? & FLAG_LRO != 0,
        hardware_receive: has_feature(device, HARDWARE_RECEIVE)?,
        chained_receive: has_feature(device, CHAINED_RECEIVE)?,
        tags_taken: has_feature(device, TAGS_TAKEN)? && !has_feature(device, TAGS_FILTERED)?,
    })
}

/// Returns the number of a feature by which the kernel knows it, or `None` if the kernel does not have it.
pub fn feature(device: &str, name: &str) -> io::Result<Option<usize>> {
    Ok(names(device, FEATURE_NAMES, 0)?.iter().position(|feature| feature == name.as_bytes()))
}

/// Returns the names of a set. `spare`: for how many more there is room, should they become more between two commands.
fn names(device: &str, set: u32, spare: usize) -> io::Result<Vec<Vec<u8>>> {
    let [low, high] = words(1u64 << set);
    // `struct ethtool_sset_info`.
    let mut count = [GET_NAMES_COUNT, 0, low, high, 0];
    call(device, &mut count)?;
    // `struct ethtool_gstrings`.
    let mut names = vec![0; 3 + (count[4] as usize + spare) * NAME_WORDS];
    names[..3].copy_from_slice(&[GET_NAMES, set, count[4]]);
    call(device, &mut names)?;
    let name = |words: &[u32; NAME_WORDS]| {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        bytes.take_while(|byte| *byte != 0).collect()
    };
    let (count, all) = (names[2] as usize, names[3..].as_chunks().0);
    Ok(all.iter().take(count).map(name).collect())
}

/// What a veth did with frames that XDP sent back, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBack {
    /// Frames that the other end took.
    pub taken: u64,
    /// Frames that it did not take.
    pub lost: u64,
}

/// Queries a veth in the calling thread's network namespace.
pub fn sent_back(device: &str) -> io::Result<SentBack> {
    // `struct ethtool_channels`: the most queues that receive, that send, others, and that do both. The kernel writes as many statistics as
    // there are at that moment, and those of queues that were just added need room.
    let mut channels = [GET_CHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    call(device, &mut channels)?;
    let spare = STATISTICS_OF_QUEUE * channels[1..5].iter().map(|most| *most as usize).sum::<usize>();
    let names = names(device, STATISTIC_NAMES, spare)?;
    // `struct ethtool_stats`.
    let mut values = vec![0; 2 + 2 * (names.len() + spare)];
    values[..2].copy_from_slice(&[GET_STATISTICS, names.len() as u32]);
    call(device, &mut values)?;
    if values[1] as usize != names.len() {
        return Err(io::Error::other(
            "queues were added or removed meanwhile: names and values are not of the same",
        ));
    }
    let values = values[2..].as_chunks().0.iter().map(|two| number(*two));
    Ok(of_queues(names.iter().map(Vec::as_slice).zip(values)))
}

/// Adds up what a veth counts for each queue (drivers/net/veth.c), as `rx_queue_0_xdp_tx`.
fn of_queues<'n>(all: impl Iterator<Item = (&'n [u8], u64)>) -> SentBack {
    let mut sent = SentBack::default();
    for (name, value) in all.filter(|(name, _)| name.starts_with(b"rx_queue_")) {
        match () {
            () if name.ends_with(b"_xdp_tx") => sent.taken += value,
            () if name.ends_with(b"_xdp_tx_errors") => sent.lost += value,
            () => {}
        }
    }
    sent
}

fn has_feature(device: &str, name: &str) -> io::Result<bool> {
    let Some(number) = feature(device, name)? else { return Ok(false) };
    let blocks = number / 32 + 1;
    // `struct ethtool_gfeatures`.
    let mut features = vec![0; 2 + blocks * BLOCK_WORDS];
    features[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
    call(device, &mut features)?;
    let active = features.get(2 + (blocks - 1) * BLOCK_WORDS + ACTIVE);
    Ok(active.is_some_and(|active| active >> (number % 32) & 1 == 1))
}

/// Returns the number as it lies in memory.
fn words(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// Returns the number that lies in memory so.
fn number(words: [u32; 2]) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (words[0].to_ne_bytes(), words[1].to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Asks for a single value.
fn ask(device: &str, command: u32) -> io::Result<u32> {
    // `struct ethtool_value`.
    let mut value = [command, 0];
    call(device, &mut value)?;
    Ok(value[1])
}

/// Executes the command in the first word. The kernel writes its answer into `data`, whose length is what the command
/// says.
fn call(device: &str, data: &mut [u32]) -> io::Result<()> {
    let mut request = Request { name: [0; libc::IFNAMSIZ], data: data.as_mut_ptr(), rest: [0; 2] };
    // The last byte stays zero.
    let place = request.name.get_mut(..device.len()).filter(|place| place.len() < libc::IFNAMSIZ);
    place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(device.as_bytes());
    // SAFETY: socket(2) with constants; a negative result is handled below.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just created, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `request` is an ifreq and `data` has room for the answer; both live through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_tells_its_offloads_and_what_is_no_device_is_an_error() {
        // Loopback always reports valid checksums and never merges segments.
        let found = offloads("lo").unwrap();
        assert!(found.rx_checksum && found.tx_checksum, "{found:?}");
        assert!(!found.large_receive && !found.chained_receive, "{found:?}");
        for name in [CHAINED_RECEIVE, HARDWARE_RECEIVE, TAGS_TAKEN, TAGS_FILTERED] {
            assert!(feature("lo", name).unwrap().is_some(), "{name}");
        }
        assert_eq!(feature("lo", "no-such").unwrap(), None);
        // Always on.
        assert!(has_feature("lo", "loopback").unwrap() && has_feature("lo", "tx-scatter-gather").unwrap());
        assert_eq!(offloads("no-such").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(sent_back("no-such").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(sent_back("lo").is_err(), "it has no queues");
        assert_eq!(offloads("sixteen-letters!").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_xdp_sent_back_is_added_up_over_queues_and_nothing_else_is() {
        let all: [(&[u8], u64); 7] = [
            (b"rx_queue_0_xdp_tx", 1),
            (b"rx_queue_0_xdp_tx_errors", 20),
            (b"rx_queue_0_xdp_redirect", 300),
            (b"rx_queue_13_xdp_tx", 4_000),
            (b"rx_queue_13_xdp_tx_errors", 50_000),
            (b"tx_queue_0_xdp_xmit", 600_000),
            (b"peer_ifindex", 7_000_000),
        ];
        assert_eq!(of_queues(all.into_iter()), SentBack { taken: 4_001, lost: 50_020 });
        assert_eq!(number(words(0x0123_4567_89ab_cdef)), 0x0123_4567_89ab_cdef);
    }
}
