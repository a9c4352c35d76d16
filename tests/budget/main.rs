//! Numbers that may only decrease: verified instructions, sizes of programs, bytes per map entry.

mod programs;
mod memory;
