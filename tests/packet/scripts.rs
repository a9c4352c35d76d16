//! Plays every script in `tests/script`, each as its own test: by TCX alone, then with XDP in front of it. Bytes and reasons have to be the
//! same, but that XDP counts what it answers as its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tests::script::Hooks;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("script")
}

/// Scripts without a SYN that XDP answers: it leaves those of TCP listeners to TCX.
const BY_TCX: &[&str] = &["ecn_tcp_listener", "fast_open_tcp_listener", "half_open_rst"];
/// A unit of time may end before any SYN of a script.
const TRIES: u32 = 10;

#[track_caller]
fn play(name: &str) {
    tests::skip_without_root!();
    let by = |hooks| {
        let played = tests::script::play(&folder().join(name).with_extension("pkt"), hooks);
        played.unwrap_or_else(|error| panic!("{hooks:?}: {error:#}"))
    };
    assert_eq!(by(Hooks::Tcx), [0; 2]);
    let is_by_xdp = !BY_TCX.contains(&name);
    let mut answered = [false; 2];
    for _ in 0..TRIES {
        let now = by(Hooks::XdpAndTcx).map(|count| count > 0);
        answered = [answered[0] || now[0], answered[1] || now[1]];
        if answered == [true; 2] {
            break;
        }
    }
    assert_eq!(answered, [is_by_xdp; 2], "whether XDP answers a SYN of it, of IPv4 and of IPv6");
}

macro_rules! scripts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            play(stringify!($name));
        })*

        const PLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

scripts! {
    backend_declines_everything
    backend_declines_sack
    backend_declines_timestamps
    backend_declines_window_scale
    backend_time_wait
    challenge_ack
    client_without_options
    client_without_sack
    client_without_timestamps
    client_without_window_scale
    ecn
    ecn_tcp_listener
    fast_open
    fast_open_tcp_listener
    half_open_rst
    header_of_20_bytes
    header_of_60_bytes
    keep_alives_over_hours
    mss_536
    mss_8960
    off_path_fin
    off_path_rst
    off_path_syn
    off_path_waiting_hello
    orphan
    owed_bytes_and_an_early_answer
    port_reused_other_tenant
    port_reused_other_tenant_at_once
    port_reused_same_tenant
    ports_used_up
    sequence_wrap
    simultaneous_close
    unserved_port
    urgent_data
    window_of_few_bytes
    zero_window
}

#[test]
fn every_script_is_played() {
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pkt"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let played: BTreeSet<String> = PLAYED.iter().map(ToString::to_string).collect();
    assert_eq!(files, played);
}
