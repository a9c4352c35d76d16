//! `vestibule check`, which needs no rights and makes nothing.

use std::path::Path;
use std::process::{Command, Output};

use tests::config::Config;
use tests::daemon::binary;
use tests::temp::TempDir;
use userspace::dataplane::OBJECT;
use userspace::dataplane::memory::{self, Memory};
use userspace::model::Settings;

/// Checks a file with this bound of flows.
fn check(pins: &Path, flows: u32) -> Output {
    let folder = TempDir::new().unwrap();
    let mut config = Config::empty();
    config.settings.max_flows = Some(flows);
    let file = folder.write("config.json", config.json()).unwrap();
    let mut command = Command::new(binary().unwrap());
    command.arg("--pins").arg(pins).arg("check").arg(file).output().unwrap()
}

#[test]
fn the_memory_of_sixteen_million_flows_is_said_before_anything_is_made() {
    const MOST: u32 = 16_777_216;
    let pins = Path::new(tests::net::BPF_DIR).join(format!("vestibule-check-{}", std::process::id()));
    let output = check(&pins, MOST);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let settings = Settings { max_flows: MOST, max_names: 1024, max_hellos: 1024, ..Settings::default() };
    let Memory { at_once, flows, .. } = memory::of(OBJECT, (&settings).into()).unwrap();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let text = format!(
        "{} MiB as soon as they are made, {} MiB of it for maxFlows {MOST}",
        mib(at_once),
        mib(flows)
    );
    assert!(said.contains(&text), "{text}: {said}");
    // A flow alone is an element of 216 bytes.
    assert!(flows > 216 * u64::from(MOST), "{flows}");
    let refused = check(&pins, MOST + 1);
    let said = String::from_utf8_lossy(&refused.stdout);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let why = "settings.maxFlows: is out of range (value \"16777217\"); write a number from 1 to 16777216";
    assert!(said.contains(why), "{said}");
    assert!(!pins.exists(), "{} was made", pins.display());
}
