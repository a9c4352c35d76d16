//! Any bytes as a message of ARP or neighbour discovery.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vestibule_fuzz::neighbour::check(input));
