//! Any bytes as a configured host name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vestibule_fuzz::config_name::check(input));
