//! Any packets of clients and backends, run through the loaded programs. Needs root.
//!
//! The programs run in the kernel, where the fuzzer sees nothing. Instead it uses as coverage how each
//! connection got into which state.
#![no_main]

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};

use vestibule_fuzz::packets::Bench;

/// Number of transitions into states.
const WAYS: usize = 1 << 14;

/// libFuzzer reads this section by its name.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static SEEN: [AtomicU8; WAYS] = [const { AtomicU8::new(0) }; WAYS];

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(bench());
}

fn bench() -> Bench {
    if let Some(why) = tests::net::unavailable() {
        eprintln!("SKIPPED: {why}");
        std::process::exit(0);
    }
    Bench::new().expect("the programs load")
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    BENCH.with_borrow_mut(|bench| {
        bench.check(input, |way| {
            let way = way.wrapping_mul(0x9e37_79b1) >> 8;
            SEEN[way % WAYS].fetch_add(1, Ordering::Relaxed);
        });
    });
});
