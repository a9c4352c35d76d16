//! Every atomic instruction of the programs is a full barrier: it returns what the word was.
//!
//! The orderings that ARCHITECTURE.md needs on arm64 come from atomic instructions alone. Of these, the kernel's memory model orders
//! only those that return a value (Documentation/atomic_t.txt), and the compiler may leave the value out where nobody uses it.

use tests::program;

/// Opcode of an atomic instruction, class STX and mode ATOMIC, without its size (RFC 9669 section 5.3).
const ATOMIC: u8 = 0xc3;
/// Bits of an opcode that are its size.
const SIZE: u8 = 0x18;
/// Bit of an atomic instruction's constant: it returns what the word was (BPF_FETCH). Exchange and compare-and-exchange have it, too.
const FETCH: u8 = 0x01;
/// Bytes of an instruction.
const BYTES: usize = 8;

/// Returns the atomic instructions of a program's text by their numbers, and whether each is a full barrier.
fn atomics(text: &[u8]) -> Vec<(usize, bool)> {
    let instructions = text.as_chunks::<BYTES>().0.iter().enumerate();
    let atomic = instructions.filter(|(_, bytes)| bytes[0] & !SIZE == ATOMIC);
    atomic.map(|(number, bytes)| (number, bytes[4] & FETCH != 0)).collect()
}

/// Returns the sections with code of an ELF file (64 bits, little-endian).
fn texts(object: &[u8]) -> Vec<&[u8]> {
    let short = |at: usize| usize::from(u16::from_le_bytes([object[at], object[at + 1]]));
    let long = |at: usize| {
        let bytes: [u8; 8] = object[at..at + 8].try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(bytes)).expect("the file is in memory")
    };
    assert_eq!(object[..6], *b"\x7fELF\x02\x01");
    let (table, entry, count) = (long(0x28), short(0x3a), short(0x3c));
    let headers = (0..count).map(|index| table + index * entry);
    // Flag SHF_EXECINSTR.
    let with_code = headers.filter(|header| long(header + 8) & 4 != 0);
    with_code.map(|header| &object[long(header + 24)..][..long(header + 32)]).collect()
}

#[test]
fn every_atomic_instruction_is_a_full_barrier() {
    let object = program::object().unwrap();
    let found: Vec<(usize, bool)> = texts(&object).into_iter().flat_map(atomics).collect();
    println!("{} atomic instructions", found.len());
    assert!(found.len() > 50, "the programs have more than {}", found.len());
    let relaxed: Vec<usize> =
        found.iter().filter(|(_, is_full)| !is_full).map(|(number, _)| *number).collect();
    assert!(relaxed.is_empty(), "instructions {relaxed:?} return nothing: use the value, or none is ordered");
}

#[test]
fn instructions_without_a_result_are_found() {
    let instruction = |opcode: u8, constant: i32| {
        let mut bytes = [opcode, 0x21, 0, 0, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&constant.to_le_bytes());
        bytes
    };
    let text = [
        // Add, with its result; exchange; compare and exchange.
        instruction(0xdb, 0x01),
        instruction(0xc3, 0xe1),
        instruction(0xdb, 0xf1),
        // Add, or, and a store that only releases.
        instruction(0xdb, 0x00),
        instruction(0xc3, 0x40),
        instruction(0xdb, 0x110),
        // A plain store, and a constant of 64 bits.
        instruction(0x7b, 0),
        instruction(0x18, 0xc3),
        instruction(0x00, 0xdb),
    ]
    .concat();
    let full = [(0, true), (1, true), (2, true), (3, false), (4, false), (5, false)];
    assert_eq!(atomics(&text), full);
}
