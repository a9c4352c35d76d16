//! Loading of the whole eBPF object.

use tests::program::{PROGRAMS, Programs};

#[test]
fn the_kernel_accepts_both_programs() {
    tests::skip_without_root!();
    let programs = Programs::load().unwrap();
    for program in PROGRAMS {
        assert!(programs.info(program).verified_instruction_count().unwrap() > 0);
    }
}
