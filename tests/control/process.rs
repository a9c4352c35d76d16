//! Our programs as processes, with the rights that the plain manifests grant.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::cluster::{ApiServer, Options};
use tests::temp::TempDir;

/// The namespace of the release, as in the plain manifests.
pub(crate) const RELEASE: &str = "vestibule-system";
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
    ApiServer::with(&Options { audit: true, objects: &rights(), ..*options }).unwrap()
}

fn rights() -> String {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/vestibule.yaml");
    let manifests = fs::read_to_string(manifests).unwrap();
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
    assert!(rights.len() > 8, "{rights:?}");
    rights.join("\n---")
}

/// Returns the requests that were refused.
pub(crate) fn refusals(server: &ApiServer) -> Vec<String> {
    let log = fs::read_to_string(server.audit_log()).unwrap_or_default();
    let refused = |line: &&str| line.contains("\"authorization.k8s.io/decision\":\"forbid\"");
    log.lines().filter(refused).map(str::to_owned).collect()
}

/// A process of ours. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it as the pod of this name; its log is in the folder.
    pub(crate) fn start(mut command: Command, folder: &TempDir, pod: &str, kubeconfig: &Path) -> Self {
        let log = folder.path().join(format!("{pod}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = command
            .env("KUBECONFIG", kubeconfig)
            .envs([("POD_NAME", pod), ("POD_NAMESPACE", RELEASE)])
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Returns its whole log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        let begun = Instant::now();
        while self.is_running() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already: then both calls fail, and there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
pub(crate) struct Controller {
    process: Process,
    port: u16,
}

impl Controller {
    /// Starts one with these flags. `command` is our binary in its namespace.
    pub(crate) fn start(
        mut command: Command,
        server: &ApiServer,
        folder: &TempDir,
        pod: &str,
        flags: &[&str],
    ) -> Self {
        let account = server.kubectl().of_service_account(RELEASE, "vestibule-controller").unwrap();
        let port = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        command.args(["controller", "--log-format=json", "--config"]);
        command.arg(folder.path().join("vestibule.json")).arg(format!("--metrics-port={port}")).args(flags);
        Self { process: Process::start(command, folder, pod, account.kubeconfig()), port }
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn end(mut self) {
        self.process.end();
    }

    /// Returns the response to a request for this path: status and text. Call it in the controller's namespace.
    pub(crate) fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, self.port))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
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
        self.ask("/metrics").is_some_and(|text| text.lines().any(|line| line == "vestibule_leader 1"))
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
