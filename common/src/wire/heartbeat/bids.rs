//! Tables of bids, which agents alone write and read.

use alloc::vec::Vec;

use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::{BIDS, BYTES, ENTRIES_MAX, ENTRY_BYTES, Heartbeat, Raw, TAG_AT, hash, signer};
use crate::maps::address::Address;
use crate::maps::settings::CookieKey;

/// An address that a node announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bid {
    /// The address.
    pub address: Address,
    /// Counts the owners of the address: a higher epoch wins.
    pub epoch: u64,
    /// The link address by which the node announces it; zero: a node of an earlier version does not say.
    pub link: [u8; 6],
}

/// A bid on the wire.
#[repr(C)]
#[derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
struct Entry {
    address: [u8; 16],
    epoch: U64,
    link: [u8; 6],
    reserved: [u8; 2],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

/// Returns the tag of a heartbeat with these entries.
fn tag(header: &[u8; BYTES], entries: &[u8], key: &CookieKey) -> u64 {
    let mut sip = hash(header, key);
    for word in entries.as_chunks::<8>().0 {
        sip.word(u64::from_le_bytes(*word));
    }
    sip.finish((TAG_AT + entries.len()) as u64)
}

/// Returns the frame, without Ethernet header, that has these bids and all else from `heartbeat`, signed. Its part of the table is at most
/// [`ENTRIES_MAX`] bids: further ones are left out.
pub fn bids(heartbeat: &Heartbeat, bids: &[Bid], key: &CookieKey) -> Vec<u8> {
    debug_assert!(bids.len() <= ENTRIES_MAX, "a frame has at most {ENTRIES_MAX} bids");
    let bids = &bids[..bids.len().min(ENTRIES_MAX)];
    let mut entries = Vec::with_capacity(bids.len() * ENTRY_BYTES);
    for bid in bids {
        let Bid { address, epoch, link } = *bid;
        let entry = Entry { address: address.bytes, epoch: epoch.into(), link, reserved: [0; 2] };
        entries.extend_from_slice(entry.as_bytes());
    }
    let mut header = [0; BYTES];
    Heartbeat { kind: BIDS, entries: bids.len() as u16, ..*heartbeat }.write(&mut header);
    let tag = tag(&header, &entries, key);
    header[TAG_AT..].copy_from_slice(&tag.to_be_bytes());
    let mut frame = Vec::with_capacity(BYTES + entries.len());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(&entries);
    frame
}

/// Reads a frame of bids, without Ethernet header; `None`: it is none, has not the length that it names, or was not signed with one of the
/// keys.
pub fn read_bids(frame: &[u8], keys: &[CookieKey; 2]) -> Option<(Heartbeat, Vec<Bid>)> {
    let (header, entries) = frame.split_first_chunk::<BYTES>()?;
    let heartbeat = Heartbeat::read(header)?;
    if heartbeat.kind != BIDS || entries.len() != usize::from(heartbeat.entries) * ENTRY_BYTES {
        return None;
    }
    let raw: &Raw = zerocopy::transmute_ref!(header);
    if raw.tag.get() != tag(header, entries, &signer(raw, keys)?) {
        return None;
    }
    let bids = <[Entry]>::ref_from_bytes(entries).ok()?;
    let bid = |entry: &Entry| Bid {
        address: Address { bytes: entry.address },
        epoch: entry.epoch.get(),
        link: entry.link,
    };
    Some((heartbeat, bids.iter().map(bid).collect()))
}
