//! Builds `target/vestibule-image.tar`, the image that the chart runs, without a container engine. It contains one
//! static binary, from scratch. It is a docker archive: `docker load`, `podman load` and `ctr images import` read it.

use crate::archive::Archive;
use crate::failure::{Failure, Outcome};
use crate::{build, process};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Name of the image in the archive.
const TAG: &str = "vestibule:dev";

/// Folders of the image, most of them mount points of volumes and kernel file systems: the pod's root is read-only.
const FOLDERS: &[(&str, u32)] = &[
    ("bin", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/vestibule", 0o755),
    ("proc", 0o555),
    ("run", 0o755),
    ("run/vestibule", 0o755),
    ("run/vestibule-pod", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/lib", 0o755),
    ("var/lib/vestibule", 0o755),
];

const STEP: &str = "making the image";

/// Builds the binary and the archive around it.
pub(crate) fn run() -> Outcome<PathBuf> {
    let built = build::run()?;
    let binary = fs::read(&built.binary).map_err(|error| failed(&built.binary, &error))?;
    if !is_static(&binary) {
        let reason = format!("{} needs a dynamic loader, and the image has none", built.binary.display());
        return Err(Failure::new(STEP, reason, "cargo xtask build, without RUSTFLAGS in the environment"));
    }
    let licence = process::root().join("LICENSE");
    let licence = fs::read(&licence).map_err(|error| failed(&licence, &error))?;
    let output = process::root().join("target/vestibule-image.tar");
    let archive = image(&binary, &licence).map_err(|error| failed(&output, &error))?;
    // Renamed over the old one in one step: another process may be reading it.
    let beside = output.with_extension("new");
    fs::write(&beside, &archive)
        .and_then(|()| fs::rename(&beside, &output))
        .map_err(|error| failed(&output, &error))?;
    let megabytes = archive.len() as f64 / 1e6;
    println!("image: target/vestibule-image.tar, {megabytes:.1} MB, {TAG}");
    Ok(output)
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(STEP, format!("{}: {error}", path.display()), "check the folder's owner and the free space")
}

/// Builds the archive: one layer, the configuration, and the list that names both.
fn image(binary: &[u8], licence: &[u8]) -> io::Result<Vec<u8>> {
    let mut layer = Archive::new(Vec::with_capacity(binary.len() + (1 << 16)));
    for (path, mode) in FOLDERS {
        layer.folder(path, *mode)?;
    }
    layer.file("bin/vestibule", 0o755, binary)?;
    layer.file("LICENSE", 0o644, licence)?;
    let layer = layer.finish()?;
    let layer_digest = sha256(&layer)?;
    let config = config(&layer_digest);
    let config_digest = sha256(config.as_bytes())?;
    let list = format!(
        "[{{\"Config\":\"{config_digest}.json\",\"RepoTags\":[\"{TAG}\"],\"Layers\":[\"{layer_digest}.tar\"]}}]\n"
    );
    let mut archive = Archive::new(Vec::with_capacity(layer.len() + (1 << 16)));
    archive.file("manifest.json", 0o644, list.as_bytes())?;
    archive.file(&format!("{config_digest}.json"), 0o644, config.as_bytes())?;
    archive.file(&format!("{layer_digest}.tar"), 0o644, &layer)?;
    archive.finish()
}

/// The configuration that container runtimes read (OCI image configuration). Nothing in it needs escaping.
fn config(layer_digest: &str) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let labels = [
        ("title", "vestibule"),
        ("description", "TLS connections routed by server name in the kernel, never ended"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", &revision()),
        // Licences of the binary, and of the eBPF programs inside it.
        ("licenses", "Apache-2.0 AND (MIT OR GPL-2.0-only)"),
    ];
    let labels = labels.map(|(name, value)| format!("\"org.opencontainers.image.{name}\":\"{value}\""));
    let created = "1970-01-01T00:00:00Z";
    format!(
        concat!(
            r#"{{"architecture":"{}","os":"linux","created":"{}","#,
            r#""config":{{"Entrypoint":["/bin/vestibule"],"Env":["PATH=/bin"],"WorkingDir":"/","Labels":{{{}}}}},"#,
            r#""rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}},"#,
            r#""history":[{{"created":"{}","created_by":"cargo xtask image"}}]}}"#,
        ),
        architecture,
        created,
        labels.join(","),
        layer_digest,
        created
    )
}

/// The commit that the image is built from, with `-dirty` if files differ from it; empty outside of git.
fn revision() -> String {
    let mut describe = process::command("git");
    describe.args(["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]);
    process::answer(&mut describe).unwrap_or_default()
}

fn sha256(bytes: &[u8]) -> io::Result<String> {
    let mut child = process::command("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // sha256sum reads all its input before it answers, so it never waits for us to read.
    child.stdin.take().map_or(Ok(()), |mut input| input.write_all(bytes))?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().next() {
        Some(digest) if output.status.success() && digest.len() == 64 => Ok(digest.to_owned()),
        _ => Err(io::Error::other("sha256sum gives no digest")),
    }
}

/// Whether an ELF file needs no dynamic loader, that is, has no program header PT_INTERP. 64 bit, little endian only.
fn is_static(file: &[u8]) -> bool {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = file.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let kinds = || -> Option<Vec<u64>> {
        // e_phoff, e_phentsize, e_phnum; p_type is first in an entry.
        let (begin, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        (0..count).map(|entry| number(usize::try_from(begin + entry * size).ok()?, 4)).collect()
    };
    file.starts_with(b"\x7fELF\x02\x01") && kinds().is_some_and(|kinds| !kinds.contains(&PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_with_a_loader_is_not_static() {
        let own = std::env::current_exe().and_then(fs::read).expect("a test can read its own program");
        assert!(!is_static(&own), "tests are linked dynamically");
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b"\x7fELF\x02\x01"), "cut off");
        // One program header, of kind PT_LOAD.
        let mut file = vec![0; 0x40 + 0x38];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[0x20], file[0x36], file[0x38], file[0x40]) = (0x40, 0x38, 1, 1);
        assert!(is_static(&file));
        file[0x40] = 3;
        assert!(!is_static(&file));
    }

    #[test]
    fn the_same_binary_gives_the_same_image() {
        let first = image(b"binary", b"licence").expect("memory does not fail");
        assert_eq!(first, image(b"binary", b"licence").expect("memory does not fail"));
        assert_ne!(first, image(b"binarz", b"licence").expect("memory does not fail"));
        let text = String::from_utf8_lossy(&first).into_owned();
        assert!(text.contains("\"RepoTags\":[\"vestibule:dev\"]"), "{text}");
        assert!(text.contains("\"Entrypoint\":[\"/bin/vestibule\"]"), "{text}");
    }
}
