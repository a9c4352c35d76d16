//! Verified instructions and sizes of each program.
//!
//! Verified instructions depend on the kernel's verifier: the numbers are those of Linux 6.18. A kernel's limit is one
//! million.

use tests::program::Programs;

/// Most that a program may cost.
#[derive(Debug)]
struct Budget {
    program: &'static str,
    /// Instructions the verifier walks through.
    verified: u32,
    /// Bytes after the verifier's own rewriting.
    translated: u32,
    /// Bytes of machine code (x86-64).
    jited: u32,
}

const BUDGETS: [Budget; 2] = [
    // Some 7,000 follow options taken out of what passes: Fast Open, and what a backend declined.
    Budget { program: "ingress", verified: 68_000, translated: 155_000, jited: 92_000 },
    Budget { program: "expire", verified: 3_500, translated: 16_500, jited: 10_000 },
];

#[test]
fn programs_keep_within_their_budgets() {
    tests::skip_without_root!();
    let programs = Programs::load().unwrap();
    let mut over = Vec::new();
    println!(
        "{:8}  {:>10} {:>10}  {:>10} {:>10}  {:>10} {:>10}",
        "program", "verified", "of", "translated", "of", "jited", "of"
    );
    for budget in &BUDGETS {
        let info = programs.info(budget.program);
        let verified = info.verified_instruction_count().expect("the kernel tells");
        let translated = info.size_translated().expect("the kernel tells root");
        let jited = info.size_jitted();
        println!(
            "{:8}  {verified:>10} {:>10}  {translated:>10} {:>10}  {jited:>10} {:>10}",
            budget.program, budget.verified, budget.translated, budget.jited
        );
        if verified > budget.verified || translated > budget.translated || jited > budget.jited {
            over.push(budget);
        }
    }
    assert!(over.is_empty(), "over budget: {over:?}; the table stands above");
}
