//! Numbers that may only fall: what the verifier walks through, how large the programs are, what an entry costs.

mod programs;
mod memory;
