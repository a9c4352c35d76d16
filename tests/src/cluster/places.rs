//! Where programs and definitions are, and the cleanup after killed tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The folder of `etcd`, `kube-apiserver` and `kubectl`.
pub fn programs() -> Result<PathBuf> {
    told("VESTIBULE_API_SERVER", "control")
}

/// The folder with the Gateway API definitions, in the version of the conformance suite.
pub fn gateway_definitions() -> Result<PathBuf> {
    told("VESTIBULE_GATEWAY_CRDS", "control")
}

/// The folder with our own definitions.
pub fn own_definitions() -> PathBuf {
    root().join("deploy/crds")
}

/// The program `helm`.
pub fn helm() -> Result<PathBuf> {
    told("VESTIBULE_HELM", "control")
}

/// The program `promtool`, which evaluates alerts.
pub fn promtool() -> Result<PathBuf> {
    told("VESTIBULE_PROMTOOL", "control")
}

/// The controller of MetalLB.
pub fn metallb() -> Result<PathBuf> {
    told("VESTIBULE_METALLB", "witness")
}

/// The folder of an earlier release's binary `vestibule` and its chart `chart`; `None`: the checkout has no history to build it from.
pub fn previous_release() -> Option<PathBuf> {
    told("VESTIBULE_PREVIOUS", "control").ok()
}

/// The archive of our own image, `vestibule:dev`.
pub fn image() -> Result<PathBuf> {
    told("VESTIBULE_IMAGE", "cluster")
}

/// The root of the checkout.
pub(super) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Returns a path that `cargo xtask test LEVEL` put into the environment.
pub(super) fn told(variable: &str, level: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    let path = path.with_context(|| format!("{variable} is not set; run `cargo xtask test {level}`"))?;
    ensure!(path.exists(), "{variable} is {}, which is not there", path.display());
    Ok(path)
}

/// Returns a kubeconfig with this token.
pub(super) fn kubeconfig(server: &str, authority: &Path, token: &str) -> String {
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    text.to_string()
}

/// Builds a command that runs in a network namespace, or where the test runs. The process is the program
/// itself: killing it ends the program.
pub(super) fn command(netns: Option<&Path>, program: &Path) -> Command {
    match netns {
        None => Command::new(program),
        Some(netns) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={}", netns.display())).arg(program);
            command
        }
    }
}

/// Runs a closure on a thread in a network namespace, or on this thread. Sockets it opens stay there.
pub(super) fn inside<T: Send>(netns: Option<&Path>, closure: impl FnOnce() -> T + Send) -> Result<T> {
    let Some(netns) = netns else { return Ok(closure()) };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            crate::net::enter(netns)?;
            Ok(closure())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Ends processes that killed test processes left running, and removes their folders. Such a folder is in the
/// system's temporary folder, was created by a dead process (`vst-<pid>-<n>`), and contains process IDs in
/// files `<program>.pid`.
pub(super) fn end_orphans() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for folder in entries.map(|entry| entry.path()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = name.strip_prefix("vst-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            continue;
        }
        let mut ours = false;
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "pid") {
                continue;
            }
            ours = true;
            let Some(pid) = fs::read_to_string(&path).ok().and_then(|pid| pid.trim().parse().ok()) else {
                continue;
            };
            // The ID may belong to another process now. It is ours only if its command line names our folder.
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy()) {
                let pid = nix::unistd::Pid::from_raw(pid);
                if let Err(error) = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL) {
                    eprintln!("cannot end process {pid}: {error}");
                }
            }
        }
        if ours && let Err(error) = fs::remove_dir_all(&folder) {
            eprintln!("cannot remove {}: {error}", folder.display());
        }
    }
}
