//! The release of the plain manifests, without its pods: what it may do, and its programs as processes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ApiServer;
use super::places::root;
use crate::temp::TempDir;

/// The namespace of the release, as in the plain manifests.
pub const RELEASE: &str = "vestibule-system";
/// Time limit for a process to end after a signal.
const STOP: Duration = Duration::from_secs(10);

/// Returns the objects of the plain manifests that say who may do what, for [`Options::objects`](super::Options::objects).
pub fn rights() -> Result<String> {
    let manifests = root().join("deploy/manifests/vestibule.yaml");
    let manifests =
        fs::read_to_string(&manifests).with_context(|| format!("reading {}", manifests.display()))?;
    let kinds = [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        // Whose requests are served first when there are too many.
        "FlowSchema",
    ];
    let wanted = |document: &&str| {
        kinds.iter().any(|kind| document.lines().any(|line| line == format!("kind: {kind}")))
    };
    let rights: Vec<&str> = manifests.split("\n---").filter(wanted).collect();
    ensure!(rights.len() > 8, "the plain manifests have {} objects that give rights", rights.len());
    Ok(rights.join("\n---"))
}

/// A process of ours, or of another that watches the API server. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it as the pod of this name; its log is in the folder.
    pub fn start(mut command: Command, folder: &TempDir, pod: &str, kubeconfig: &Path) -> Result<Self> {
        let log = folder.path().join(format!("{pod}.log"));
        let file = File::options().create(true).append(true).open(&log).context("opening a log")?;
        let child = command
            .env("KUBECONFIG", kubeconfig)
            .envs([("POD_NAME", pod), ("POD_NAMESPACE", RELEASE)])
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting {pod}"))?;
        Ok(Self { child, log })
    }

    /// Returns its whole log.
    pub fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("reading {}", self.log.display()))
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("a process's number")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("sending {signal} to {pid}"))
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Sends SIGTERM and waits for the end.
    pub fn end(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let begun = Instant::now();
        while self.is_running()? {
            ensure!(begun.elapsed() < STOP, "it does not end:\n{}", self.log()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already: then both calls fail, and there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A controller, with its ServiceAccount's rights. Dropping it kills it.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    port: u16,
}

impl Controller {
    /// Starts one as the pod of this name, with these flags. `command` is our binary in its namespace, and the folder has the chart's
    /// file, `vestibule.json`.
    pub fn start(
        mut command: Command,
        server: &ApiServer,
        folder: &TempDir,
        pod: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let account = server.kubectl().of_service_account(RELEASE, "vestibule-controller")?;
        let port = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?.local_addr()?.port();
        command.args(["controller", "--log-format=json", "--config"]);
        command.arg(folder.path().join("vestibule.json")).arg(format!("--metrics-port={port}")).args(flags);
        Ok(Self { process: Process::start(command, folder, pod, account.kubeconfig())?, port })
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Sends SIGTERM and waits for the end.
    pub fn end(&mut self) -> Result<()> {
        self.process.end()
    }

    /// Returns the response to a request for this path: status and text. Call it in the controller's namespace. `None`: there is
    /// none, as before it listens.
    pub fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, self.port))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Whether it leads: it alone writes.
    pub fn leads(&self) -> bool {
        self.ask("/metrics").is_some_and(|text| text.lines().any(|line| line == "vestibule_leader 1"))
    }
}
