//! Any bytes, cut anywhere, as the start of a TLS connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vestibule_fuzz::client_hello::check(input));
