//! Numbers that may only decrease: verified instructions, sizes of programs, bytes per map entry. And that atomic instructions are barriers.

mod programs;
mod atomics;
mod memory;
