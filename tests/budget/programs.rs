//! Verified instructions and sizes of each program.
//!
//! The number of verified instructions depends on the kernel's verifier; these are for Linux 6.18. The
//! kernel's limit is one million.

use tests::program::Programs;

/// What a program cost when its budget was set; it may cost up to 5 % more.
#[derive(Debug)]
struct Measured {
    program: &'static str,
    /// Instructions that the verifier walks through.
    verified: u32,
    /// Bytes after the verifier's own rewriting.
    translated: u32,
    /// Bytes of machine code (x86-64).
    jited: u32,
}

const MEASURED: [Measured; 3] = [
    // Some 7,000 of them remove options from passing segments: Fast Open, and those that a backend declined.
    // Some 8,000 keep each number of a flow in a word with its generation, and judge windows: what a stranger or a late
    // CPU writes is not learned. Some 900 give each flow the number of its next hop, and 1,200 more bytes of machine code.
    // Some 5,000 look for the flow of a hello once more after its record was stored.
    // Cookies of TCP listeners, another port for an old connection, and the jumbo header take what is left; the challenge of a
    // waiting client's RST took 136 more than that. Source ranges take 1,500 bytes, 900 of machine code. That members of a table are
    // looked at by `bpf_loop` saves 5,400 instructions here, and as many of the other program. ARP and neighbour discovery take 4,600, and
    // 9,000 bytes, 5,700 of machine code, which no packet of a connection runs through. Nor does one through heartbeats and the gate, of
    // 7,700 bytes, 4,600 of machine code. That what has a cookie goes to no node whose agent is dead, that this one opens nothing at an
    // address that it left with its own dead, and that link addresses are followed, takes 1,200 bytes, 700 of machine code. Clients on the node take 1,100 bytes.
    // That a flow on trial is reported takes 420, 220 of machine code; that one which there is no room to report is counted, or the daemon could not
    // know that it has to look for it, 144, 92 of machine code. That a SYN which its backend left unanswered goes to another one, that a client
    // is reset whose hello gave its slot at its time limit, and that bytes which arrive meanwhile are not lost, takes 1,300, 700 of machine code, and 300 instructions.
    // That a flow whose backend sees its client is listed takes 400, 220 of machine code, and 13 instructions.
    Measured { program: "ingress", verified: 84_887, translated: 206_250, jited: 119_620 },
    // Some 800 instructions count flows and hellos down wherever a record is removed, and serve a crowded flow map: both ends
    // asked, the count of a source dropped. Some 2,500 dial: a SYN that is sent again may go to the next backend. The ring of
    // closed flows takes 500, and 3,000 bytes. Several orders in one run take 550, and 1,400 bytes. Some 300 read a route twice, for
    // its element may be another one's by then. That a flow is ended only by a word that still says why takes 2,000 bytes.
    // Some 60 keep a backend while the next three have the client's port taken. Some 260 answer clients on the node by its own pair.
    Measured { program: "expire", verified: 10_660, translated: 39_136, jited: 22_600 },
    // Nearly every frame runs through fewer than fifty of them: those of the one look at its flags.
    Measured { program: "front", verified: 4_979, translated: 17_864, jited: 9_794 },
];

/// The maximum for a measured value.
const fn budget(measured: u32) -> u32 {
    measured + measured / 20
}

#[test]
fn programs_keep_within_their_budgets() {
    tests::skip_without_root!();
    let programs = Programs::load().unwrap();
    let mut over = Vec::new();
    println!(
        "{:8}  {:>10} {:>10}  {:>10} {:>10}  {:>10} {:>10}",
        "program", "verified", "of", "translated", "of", "jited", "of"
    );
    for measured in &MEASURED {
        let info = programs.info(measured.program);
        let verified = info.verified_instruction_count().expect("the kernel reports it");
        let translated = info.size_translated().expect("the kernel reports it to root");
        let jited = info.size_jitted();
        let [verified_most, translated_most, jited_most] =
            [measured.verified, measured.translated, measured.jited].map(budget);
        println!(
            "{:8}  {verified:>10} {verified_most:>10}  {translated:>10} {translated_most:>10}  {jited:>10} {jited_most:>10}",
            measured.program
        );
        if verified > verified_most || translated > translated_most || jited > jited_most {
            over.push(measured.program);
        }
    }
    assert!(over.is_empty(), "over budget: {over:?}; see the table above");
}
