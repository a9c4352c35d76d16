//! Our programs as processes, with the rights that the plain manifests grant.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
pub(crate) use tests::cluster::RELEASE;
use tests::cluster::{self, ApiServer, Options, rights};
use tests::temp::TempDir;

/// A Service that requests an address outside of the ranges, which is reported as a problem.
pub(crate) const OUTSIDE: &str = "
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: tenant, annotations: {vestibule.dev/addresses: 198.51.100.9}}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  ports: [{port: 443, protocol: TCP}]
";
/// The time limit for a step on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Starts an API server with the rights of the plain manifests.
pub(crate) fn server(options: &Options<'_>) -> ApiServer {
    ApiServer::with(&Options { audit: true, objects: &rights().unwrap(), ..*options }).unwrap()
}

/// Returns the requests that were refused.
pub(crate) fn refusals(server: &ApiServer) -> Vec<String> {
    let log = fs::read_to_string(server.audit_log()).unwrap_or_default();
    let refused = |line: &&str| line.contains("\"authorization.k8s.io/decision\":\"forbid\"");
    log.lines().filter(refused).map(str::to_owned).collect()
}

/// A process of ours. Dropping it kills it.
pub(crate) struct Process(cluster::Process);

impl Process {
    /// Starts it as the pod of this name; its log is in the folder.
    pub(crate) fn start(command: Command, folder: &TempDir, pod: &str, kubeconfig: &Path) -> Self {
        Self(cluster::Process::start(command, folder, pod, kubeconfig).unwrap())
    }

    /// Returns its whole log.
    pub(crate) fn log(&self) -> String {
        self.0.log().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.is_running().unwrap()
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn end(&mut self) {
        self.0.end().unwrap();
    }
}

/// Returns the CPU time that all threads of the process have used.
pub(crate) fn cpu_secs(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let used_ns = |task: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    tasks.filter_map(used_ns).sum::<f64>() / 1e9
}

/// Returns the resident memory of a process.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmRSS:")
}

/// Returns the part of its resident memory that is its program's file, and maps that it maps: the kernel may take it back.
pub(crate) fn of_files_kib(pid: u32) -> u64 {
    memory_kib(pid, "RssFile:")
}

fn memory_kib(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A controller.
pub(crate) struct Controller(cluster::Controller);

impl Controller {
    /// Starts one with these flags. `command` is our binary in its namespace.
    pub(crate) fn start(
        command: Command,
        server: &ApiServer,
        folder: &TempDir,
        pod: &str,
        flags: &[&str],
    ) -> Self {
        Self(cluster::Controller::start(command, server, folder, pod, flags).unwrap())
    }

    pub(crate) fn log(&self) -> String {
        self.0.process().log().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.process().pid()
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn end(mut self) {
        self.0.end().unwrap();
    }

    /// Returns the response to a request for this path: status and text. Call it in the controller's namespace.
    pub(crate) fn ask(&self, path: &str) -> Option<String> {
        self.0.ask(path)
    }

    /// Asks for this path until the response is as expected, and returns it.
    pub(crate) fn wait_for_answer(&self, path: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.ask(path);
            match answer {
                Some(answer) if wanted(&answer) => return answer,
                answer => assert!(begun.elapsed() < SOON, "{answer:?}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn leads(&self) -> bool {
        self.0.leads()
    }

    /// Returns the number of statuses that it tried to write.
    pub(crate) fn writes(&self) -> u32 {
        let text = self.ask("/metrics").unwrap();
        let counts = text.lines().filter(|line| line.starts_with("vestibule_status_writes_total"));
        counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap()).sum()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}
