//! The program that a breakpoint runs, put together instruction by instruction.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Change, Kind};

/// Instructions (Documentation/bpf/standardization/instruction-set.rst).
#[derive(Default)]
pub(super) struct Code {
    instructions: Vec<u64>,
    /// Jumps to the end, whose offsets are filled in later.
    to_end: Vec<usize>,
}

pub(super) const R0: u8 = 0;
pub(super) const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
/// Preserved by helpers, as those behind it.
pub(super) const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const R10: u8 = 10;

const LOAD_64: u8 = 0x18;
const LOAD_BYTE: u8 = 0x71;
const LOAD_DOUBLE: u8 = 0x79;
const STORE_BYTE: u8 = 0x72;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const MOVE: u8 = 0xb7;
pub(super) const MOVE_REGISTER: u8 = 0xbf;
pub(super) const STORE_64: u8 = 0x7b;
const ATOMIC_64: u8 = 0xdb;
const ATOMIC_FETCH_ADD: i32 = 0x01;
pub(super) const JUMP_IF_EQUAL: u8 = 0x15;
pub(super) const JUMP_UNLESS_EQUAL: u8 = 0x55;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_LESS: u8 = 0xa5;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register of [`LOAD_64`]: the constant is a map's descriptor.
const MAP_FD: u8 = 1;
/// Numbers of helpers (include/uapi/linux/bpf.h).
pub(super) const LOOK_UP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const KTIME_GET_NS: i32 = 5;
const PROBE_READ_KERNEL: i32 = 113;
/// More rounds of [`Code::linger`] than any processor makes in its time.
const ROUNDS_MAX: i32 = 4_000;
/// Flag of [`UPDATE`]: only if there is no such element.
const NO_EXIST: i32 = 1;
/// Flag of [`UPDATE`]: only if there is such an element.
const EXIST: i32 = 2;

impl Code {
    pub(super) fn put(&mut self, op: u8, to: u8, from: u8, offset: i16, constant: i32) {
        let word = u64::from(op)
            | u64::from(to) << 8
            | u64::from(from) << 12
            | u64::from(offset as u16) << 16
            | u64::from(constant as u32) << 32;
        self.instructions.push(word);
    }

    /// Calls a helper with a map and a key.
    pub(super) fn call(&mut self, map: BorrowedFd<'_>, key: &[u8], helper: i32) {
        let at = -(key.len().next_multiple_of(8) as i16);
        for (i, byte) in key.iter().enumerate() {
            self.put(STORE_BYTE, R10, 0, at + i as i16, i32::from(*byte));
        }
        self.put(LOAD_64, R1, MAP_FD, 0, map.as_raw_fd());
        self.put(0, 0, 0, 0, 0);
        self.put(MOVE_REGISTER, R2, R10, 0, 0);
        self.put(ADD, R2, 0, 0, at.into());
        self.put(CALL, 0, 0, 0, helper);
    }

    /// Jumps to the end if the comparison `op` of the register with the constant is true.
    pub(super) fn end_if(&mut self, op: u8, register: u8, constant: i32) {
        self.to_end.push(self.instructions.len());
        self.put(op, register, 0, 0, constant);
    }

    /// Adds 1 to a word of [`Told`]; R1 holds the value before.
    pub(super) fn add(&mut self, told: BorrowedFd<'_>, at: usize) {
        self.call(told, &0u32.to_ne_bytes(), LOOK_UP);
        self.end_if(JUMP_IF_EQUAL, R0, 0);
        self.put(MOVE, R1, 0, 0, 1);
        self.put(ATOMIC_64, R0, R1, at as i16, ATOMIC_FETCH_ADD);
    }

    /// Makes the change; `value` is the map with the value that it inserts.
    pub(super) fn change(&mut self, map: BorrowedFd<'_>, change: &Change, value: Option<BorrowedFd<'_>>) {
        match &change.kind {
            Kind::Insert(_) | Kind::Replace(_) => {
                let flags = if matches!(change.kind, Kind::Insert(_)) { NO_EXIST } else { EXIST };
                self.call(value.expect("it has a value"), &0u32.to_ne_bytes(), LOOK_UP);
                self.end_if(JUMP_IF_EQUAL, R0, 0);
                self.put(MOVE_REGISTER, R3, R0, 0, 0);
                self.put(MOVE, R4, 0, 0, flags);
                self.call(map, &change.key, UPDATE);
                self.end_if(JUMP_UNLESS_EQUAL, R0, 0);
            }
            Kind::Remove => {
                self.call(map, &change.key, DELETE);
                self.end_if(JUMP_UNLESS_EQUAL, R0, 0);
            }
            Kind::Expect(at, bits, value) => {
                self.call(map, &change.key, LOOK_UP);
                self.end_if(JUMP_IF_EQUAL, R0, 0);
                self.put(LOAD_BYTE, R1, R0, *at as i16, 0);
                self.put(AND, R1, 0, 0, i32::from(*bits));
                self.end_if(JUMP_UNLESS_EQUAL, R1, i32::from(*value));
            }
            Kind::Write(at, bytes) => {
                self.call(map, &change.key, LOOK_UP);
                self.end_if(JUMP_IF_EQUAL, R0, 0);
                for (i, byte) in (*at as i16..).zip(bytes) {
                    self.put(STORE_BYTE, R0, 0, i, i32::from(*byte));
                }
            }
        }
    }

    /// Copies the value of `map`, an array of one element of this many bytes, onto itself until the word `until` of [`Told`] is
    /// set or the time is over.
    pub(super) fn linger(
        &mut self,
        told: BorrowedFd<'_>,
        until: usize,
        map: BorrowedFd<'_>,
        (bytes, nanoseconds): (usize, i32),
    ) {
        self.call(told, &0u32.to_ne_bytes(), LOOK_UP);
        self.end_if(JUMP_IF_EQUAL, R0, 0);
        self.put(MOVE_REGISTER, R9, R0, 0, 0);
        self.call(map, &0u32.to_ne_bytes(), LOOK_UP);
        self.end_if(JUMP_IF_EQUAL, R0, 0);
        self.put(MOVE_REGISTER, R6, R0, 0, 0);
        self.put(CALL, 0, 0, 0, KTIME_GET_NS);
        self.put(MOVE_REGISTER, R7, R0, 0, 0);
        self.put(ADD, R7, 0, 0, nanoseconds);
        self.put(MOVE, R8, 0, 0, 0);
        let round = self.instructions.len();
        self.put(MOVE_REGISTER, R1, R6, 0, 0);
        self.put(MOVE, R2, 0, 0, bytes as i32);
        self.put(MOVE_REGISTER, R3, R6, 0, 0);
        self.put(CALL, 0, 0, 0, PROBE_READ_KERNEL);
        self.put(LOAD_DOUBLE, R1, R9, until as i16, 0);
        self.put(JUMP_UNLESS_EQUAL, R1, 0, 4, 0);
        self.put(CALL, 0, 0, 0, KTIME_GET_NS);
        self.put(JUMP_IF_GREATER, R0, R7, 2, 0);
        self.put(ADD, R8, 0, 0, 1);
        let back = round as i16 - self.instructions.len() as i16 - 1;
        // The verifier wants an end that does not depend on the clock.
        self.put(JUMP_IF_LESS, R8, 0, back, ROUNDS_MAX);
    }

    /// Completes the program; it returns 0.
    pub(super) fn finish(mut self) -> Vec<u64> {
        let end = self.instructions.len();
        for jump in std::mem::take(&mut self.to_end) {
            let distance = (end - jump - 1) as u16;
            self.instructions[jump] |= u64::from(distance) << 16;
        }
        self.put(MOVE, R0, 0, 0, 0);
        self.put(EXIT, 0, 0, 0, 0);
        self.instructions
    }
}
