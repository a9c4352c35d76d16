//! The object as a whole.

use tests::net::unavailable;
use tests::program::{PROGRAMS, Programs};

#[test]
fn the_kernel_accepts_both_programs() {
    if let Some(why) = unavailable() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let programs = Programs::load().unwrap();
    for program in PROGRAMS {
        assert!(programs.info(program).verified_instruction_count().unwrap() > 0);
    }
}
