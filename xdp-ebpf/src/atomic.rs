//! Reads and changes of memory that several CPUs use at the same time.

use common::maps::flow::Connection;
use common::maps::word::{Head, Word};

/// Adds 1 and returns the previous value, atomically across all CPUs.
#[inline(always)]
pub(crate) fn advance(counter: &mut u64) -> u64 {
    // The target reports no atomics (true before cpu v3), so core offers no `fetch_add`; the intrinsic
    // compiles to one BPF instruction.
    #[cfg(target_arch = "bpf")]
    // SAFETY: the reference is valid and aligned, and the access is atomic, so other CPUs may change the value too.
    return unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::SeqCst }>(counter, 1)
    };
    #[cfg(not(target_arch = "bpf"))]
    core::mem::replace(counter, counter.wrapping_add(1))
}

/// Adds modulo 2^32 and returns the previous value, atomically across all CPUs.
#[inline(always)]
pub(crate) fn add(counter: &mut u32, value: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    // SAFETY: as in `advance`.
    return unsafe {
        core::intrinsics::atomic_xadd::<u32, u32, { core::intrinsics::AtomicOrdering::SeqCst }>(
            counter, value,
        )
    };
    #[cfg(not(target_arch = "bpf"))]
    core::mem::replace(counter, counter.wrapping_add(value))
}

/// Orders all reads and writes before it and after it; `word` stays as it is.
#[inline(always)]
pub(crate) fn fence(word: &mut u32) {
    add(word, 0);
}

/// Writes `new` and returns the previous value, atomically across all CPUs.
#[inline(always)]
pub(crate) fn exchange(word: &mut u32, new: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    // SAFETY: as in `advance`.
    return unsafe {
        core::intrinsics::atomic_xchg::<u32, { core::intrinsics::AtomicOrdering::SeqCst }>(word, new)
    };
    #[cfg(not(target_arch = "bpf"))]
    core::mem::replace(word, new)
}

/// Reads a word that another CPU may be writing. The read is volatile: an earlier value is not reused.
#[inline(always)]
pub(crate) fn read_now(word: &u32) -> u32 {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::from_ref(word).read_volatile() }
}

/// Reads eight bytes that another CPU may be writing, in one piece. Volatile: an earlier value is not reused.
#[inline(always)]
pub(crate) fn read_long(word: &u64) -> u64 {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::from_ref(word).read_volatile() }
}

/// Writes eight bytes that other CPUs may be reading, in one piece.
#[inline(always)]
pub(crate) fn write_long(word: &mut u64, value: u64) {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::from_mut(word).write_volatile(value) }
}

/// Writes a word that only this CPU uses, after everything that was written before.
#[inline(always)]
pub(crate) fn write_last(word: &mut u32, value: u32) {
    // Only the compiler could move writes behind it.
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Release);
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::from_mut(word).write_volatile(value) }
}

/// Replaces a word if it still is `expected`; returns what it was. Atomic across all CPUs, and a full barrier if the
/// word was replaced (kernel: Documentation/bpf/standardization/instruction-set.rst, Documentation/atomic_t.txt).
#[inline(always)]
fn compare_exchange(word: *mut u64, expected: u64, new: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    // SAFETY: the callers' references are valid, and their words are aligned to 8 in every map.
    return unsafe {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};
        atomic_cxchg::<u64, { SeqCst }, { SeqCst }>(word, expected, new).0
    };
    #[cfg(not(target_arch = "bpf"))]
    // SAFETY: as above; there is only one CPU.
    unsafe {
        let was = word.read();
        word.write(if was == expected { new } else { was });
        was
    }
}

/// Reads a word that other CPUs may exchange.
#[inline(always)]
pub(crate) fn word<T: Word>(at: &T) -> T {
    // SAFETY: a reference is valid, and words are aligned to 8 in every map. Volatile: an earlier read is not reused.
    T::of(unsafe { core::ptr::from_ref(at).cast::<u64>().read_volatile() })
}

/// The most tries to exchange a word. A try fails only when another CPU exchanged the same word of the same connection
/// a moment ago, with a packet of its own.
const TRIES: u32 = 8;

/// Changes the bits of a word of the connection with this generation; returns what they were before. `None`: the word
/// belongs to another connection now, or other CPUs were always quicker; nothing was changed.
#[inline(always)]
pub(crate) fn change<T: Word>(at: &mut T, generation: u32, changed: impl Fn(u64) -> u64) -> Option<u64> {
    let mut was = word(at).bits();
    let mut tried = 0;
    while tried < TRIES {
        if !T::of(was).belongs_to(generation) {
            return None;
        }
        let new = changed(was);
        if new == was {
            return Some(was);
        }
        let found = compare_exchange(core::ptr::from_mut(at).cast(), was, new);
        if found == was {
            return Some(was);
        }
        was = found;
        tried += 1;
    }
    None
}

/// Replaces a word if it still is as it was `seen`.
#[inline(always)]
pub(crate) fn replace<T: Word>(at: &mut T, seen: T, new: T) -> bool {
    compare_exchange(core::ptr::from_mut(at).cast(), seen.bits(), new.bits()) == seen.bits()
}

/// Raises a counter if it still is as it was `seen`.
#[inline(always)]
pub(crate) fn raise(counter: &mut u64, seen: u64, new: u64) -> bool {
    compare_exchange(counter, seen, new) == seen
}

/// Returns the word of generation, state and flags of a connection's record in a map.
#[inline(always)]
pub(crate) fn head(connection: &mut Connection) -> &mut Head {
    // SAFETY: `Head` is the first eight bytes of `Connection`, with the same fields.
    unsafe { &mut *core::ptr::from_mut(connection).cast::<Head>() }
}
