//! etcd and an API server, without nodes: ready in three seconds.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::KeyPair;
use ring::rand::{SecureRandom, SystemRandom};

use super::etcd;
use super::places;
use super::seed::{self, Content, Seed};
use super::turn::Turn;
use super::{Kubectl, Rest};
use crate::net::Namespace;
use crate::temp::TempDir;
use crate::tls::{Authority, Files};

/// Time limit for a start on a busy machine.
const START: Duration = Duration::from_secs(60);
/// Time limit for a graceful stop.
const STOP: Duration = Duration::from_secs(10);
/// The folder of the backup of etcd's data.
const BACKUP: &str = "backup";

/// Options of an API server.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// The namespace in which it runs and listens on loopback; where the test runs when `None`.
    pub namespace: Option<&'a Namespace>,
    /// Skip the definitions of the Gateway API and ours.
    pub bare: bool,
    /// A manifest of more objects that are there from the start.
    pub objects: &'a str,
    /// Log who requested what to [`ApiServer::audit_log`].
    pub audit: bool,
    /// Additional arguments of kube-apiserver.
    pub arguments: &'a [&'a str],
    /// Run while no other test has a server; for tests that measure.
    pub alone: bool,
}

/// etcd and kube-apiserver on loopback, with RBAC and the usual admission. Dropping it ends both.
#[derive(Debug)]
pub struct ApiServer {
    etcd: Child,
    /// etcd's, for clients and for peers.
    etcd_ports: [u16; 2],
    server: Option<Child>,
    programs: PathBuf,
    netns: Option<PathBuf>,
    arguments: Vec<String>,
    kubectl: Kubectl,
    rest: Rest,
    _files: Files,
    // Dropped after the programs have ended.
    folder: TempDir,
    _turn: Option<Turn>,
}

impl ApiServer {
    /// Starts an API server with the definitions of the Gateway API and ours.
    pub fn start() -> Result<Self> {
        Self::with(&Options::default())
    }

    /// Starts an API server with these options.
    pub fn with(options: &Options<'_>) -> Result<Self> {
        let turn = Turn::take(options.alone);
        places::end_orphans();
        let content = Content { definitions: !options.bare, objects: options.objects.to_owned() };
        if !content.definitions && content.objects.is_empty() {
            return Self::launched(options, None, Some(turn));
        }
        let seed = seed::of(content, Self::seed)?;
        let server = Self::launched(options, Some(&seed), Some(turn))?;
        server.wait_served(&seed.kinds)?;
        Ok(server)
    }

    /// Installs what a seed contains in an API server of its own.
    fn seed(content: Content) -> Result<Seed> {
        let mut server = Self::launched(&Options::default(), None, None)?;
        if content.definitions {
            server.define()?;
        }
        if !content.objects.is_empty() {
            // The API server makes it soon after it is ready; roles of ours are in it.
            server.kubectl.wait_for("kube-system", &["namespace", "kube-system"], START, |_| true)?;
            server.kubectl.apply(&content.objects)?;
        }
        let definitions = server.kubectl.get(&["crd"])?;
        let names = definitions["items"].as_array().into_iter().flatten();
        let kinds = names.filter_map(|one| one["metadata"]["name"].as_str().map(str::to_owned)).collect();
        server.stop_all()?;
        Seed::read(content, kinds, &server.folder.path().join(etcd::DATA))
    }

    /// Starts both programs, on these objects or on none.
    fn launched(options: &Options<'_>, seed: Option<&Seed>, turn: Option<Turn>) -> Result<Self> {
        let programs = places::programs()?;
        let netns = options.namespace.map(Namespace::path);
        let folder = TempDir::new()?;
        let authority = Authority::new("kubernetes")?;
        let files = authority.files(&authority.server(&["127.0.0.1", "localhost"])?)?;
        let accounts = KeyPair::generate()?;
        folder.write("accounts.key", accounts.serialize_pem())?;
        folder.write("accounts.pub", accounts.public_key_pem())?;
        let token = token()?;
        folder.write("tokens.csv", format!("{token},admin,admin,\"system:masters\"\n"))?;
        folder.write("audit.yaml", AUDIT_POLICY)?;
        let [port, clients, peers] = free_ports()?;
        let kubeconfig = places::kubeconfig(&format!("https://127.0.0.1:{port}"), &files.authority, &token);
        let kubeconfig = folder.write("kubeconfig", kubeconfig)?;
        let rest = Rest {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            netns: netns.clone(),
            tls: authority.client_config(None)?,
            token,
        };
        if let Some(seed) = seed {
            seed.write(&folder.path().join(etcd::DATA))?;
        }
        let etcd = etcd::start(&programs, netns.as_deref(), &folder, clients, peers)?;
        let mut server = Self {
            etcd,
            etcd_ports: [clients, peers],
            server: None,
            kubectl: Kubectl::new(programs.join("kubectl"), kubeconfig, netns.clone()),
            programs,
            netns,
            arguments: arguments(&folder, &files, options, port, clients),
            rest,
            _files: files,
            folder,
            _turn: turn,
        };
        server.launch()?;
        Ok(server)
    }

    /// Asks for these kinds, until all are served. The API server opens the storage of each at the first request for it,
    /// and until it has, others are refused with 429: a controller that starts meanwhile does not know them for a while.
    fn wait_served(&self, kinds: &[String]) -> Result<()> {
        if kinds.is_empty() {
            return Ok(());
        }
        let kinds = kinds.join(",");
        self.kubectl
            .wait_for("all kinds are served", &["--all-namespaces", &kinds], START, |_| true)
            .map(drop)
    }

    /// Installs the definitions of the Gateway API and ours, and waits until they are served.
    pub fn define(&self) -> Result<()> {
        self.kubectl.apply_files(&places::gateway_definitions()?)?;
        let ours = places::own_definitions();
        if ours.is_dir() {
            self.kubectl.apply_files(&ours)?;
        }
        self.kubectl.wait_for_definitions()
    }

    /// The administrator's kubectl.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        self.kubectl.kubeconfig()
    }

    /// The administrator's access over HTTP.
    pub fn rest(&self) -> &Rest {
        &self.rest
    }

    /// The audit log, with [`Options::audit`]: one line of JSON (an `audit.k8s.io/v1` Event) for each request
    /// of a ServiceAccount.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.path().join("audit.json")
    }

    /// Stops the API server gracefully. etcd keeps running, so all objects remain.
    pub fn stop(&mut self) -> Result<()> {
        let mut server = self.server.take().context("the API server does not run")?;
        signal(&server, Signal::SIGTERM)?;
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if server.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Kills the API server, as in a crash.
    pub fn crash(&mut self) -> Result<()> {
        let mut server = self.server.take().context("the API server does not run")?;
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Starts the API server again at the same address, and waits until it is ready.
    pub fn launch(&mut self) -> Result<()> {
        self.launch_within(START)
    }

    fn launch_within(&mut self, limit: Duration) -> Result<()> {
        ensure!(self.server.is_none(), "the API server runs already");
        let mut command = places::command(self.netns.as_deref(), &self.programs.join("kube-apiserver"));
        command.args(&self.arguments);
        self.server = Some(spawn(command, &self.folder, "kube-apiserver")?);
        self.wait_ready(limit)
    }

    /// Stops the API server and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.restart_within(START)
    }

    /// The same where more time may pass until it is ready: hundreds of clients may come back at once.
    pub fn restart_within(&mut self, limit: Duration) -> Result<()> {
        self.stop()?;
        self.launch_within(limit)
    }

    /// Makes a backup of all objects, instead of the one before. The API server restarts.
    pub fn back_up(&mut self) -> Result<()> {
        self.replace_data(etcd::DATA, BACKUP)
    }

    /// Brings back all objects as they were in the backup, with their versions. The API server restarts.
    pub fn restore(&mut self) -> Result<()> {
        self.replace_data(BACKUP, etcd::DATA)
    }

    /// Stops the API server and etcd gracefully.
    fn stop_all(&mut self) -> Result<()> {
        self.stop()?;
        signal(&self.etcd, Signal::SIGTERM)?;
        self.etcd.wait()?;
        Ok(())
    }

    /// Copies one folder over another while neither etcd nor the API server runs.
    fn replace_data(&mut self, from: &str, to: &str) -> Result<()> {
        self.stop_all()?;
        let [from, to] = [from, to].map(|name| self.folder.path().join(name));
        if to.exists() {
            fs::remove_dir_all(&to).with_context(|| format!("removing {}", to.display()))?;
        }
        etcd::copy(&from, &to)?;
        let [clients, peers] = self.etcd_ports;
        self.etcd = etcd::start(&self.programs, self.netns.as_deref(), &self.folder, clients, peers)?;
        self.launch()
    }

    /// Suspends the API server: it answers nothing and all connections stay open, as a watch sees it when its
    /// path is cut.
    pub fn freeze(&self) -> Result<()> {
        signal(self.server.as_ref().context("the API server does not run")?, Signal::SIGSTOP)
    }

    /// Resumes the API server after [`Self::freeze`].
    pub fn thaw(&self) -> Result<()> {
        signal(self.server.as_ref().context("the API server does not run")?, Signal::SIGCONT)
    }

    /// Returns the last lines of the logs of etcd and the API server.
    pub fn logs(&self) -> String {
        let read = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(20)..].join("\n")
        };
        format!("etcd:\n{}\nkube-apiserver:\n{}", read("etcd.log"), read("kube-apiserver.log"))
    }

    fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let answer =
                self.rest.connect().and_then(|mut api| api.request("GET", "/readyz", "text/plain", b""));
            if answer.is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            let etcd = self.etcd.try_wait()?;
            let server = self.server.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = etcd.or(server) {
                bail!("etcd or kube-apiserver ended with {status}:\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the API server is not ready after {limit:?}:\n{}", self.logs())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for child in [self.server.as_mut(), Some(&mut self.etcd)].into_iter().flatten() {
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                eprintln!("cannot end process {}: {error}", child.id());
            }
        }
    }
}

/// Logs every request of a ServiceAccount when it is answered and, for watches, also when they start.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - {level: Metadata, userGroups: ['system:serviceaccounts'], omitStages: [RequestReceived]}
  - {level: None}
";

fn arguments(folder: &TempDir, files: &Files, options: &Options<'_>, port: u16, etcd: u16) -> Vec<String> {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--bind-address=127.0.0.1".into(),
        // An endpoint of the Service `kubernetes` must not be on loopback. Nothing connects to it.
        "--advertise-address=192.0.2.1".into(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", files.certificate.display()),
        format!("--tls-private-key-file={}", files.key.display()),
        format!("--cert-dir={}", path("certificates")),
        "--service-cluster-ip-range=10.99.0.0/24,fd99::/112".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", path("accounts.pub")),
        format!("--service-account-signing-key-file={}", path("accounts.key")),
        format!("--token-auth-file={}", path("tokens.csv")),
        "--authorization-mode=RBAC".into(),
        "--allow-privileged".into(),
        // A stop waits for requests in flight; watches of tests would delay it for a minute.
        "--shutdown-delay-duration=0s".into(),
        "--shutdown-watch-termination-grace-period=0s".into(),
    ];
    if options.audit {
        arguments.push(format!("--audit-policy-file={}", path("audit.yaml")));
        arguments.push(format!("--audit-log-path={}", path("audit.json")));
        // MB. By default it would be renamed at 100, and what is in it not be found: no test writes as much as this.
        arguments.push("--audit-log-maxsize=100000".into());
    }
    arguments.extend(options.arguments.iter().map(ToString::to_string));
    arguments
}

/// Starts a program with its log and its process ID in the folder. If this process is killed, the next test
/// process finds the ID there.
pub(super) fn spawn(mut command: Command, folder: &TempDir, name: &str) -> Result<Child> {
    let log = folder.path().join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(log).context("opening a log")?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = command.spawn().with_context(|| format!("starting {name}"))?;
    folder.write(&format!("{name}.pid"), child.id().to_string())?;
    Ok(child)
}

/// Returns free ports, all held at the same time so that they differ.
fn free_ports() -> Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener.and_then(|listener| listener.local_addr()).context("finding a free port")?.port();
    }
    Ok(ports)
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).context("a process's number")?;
    kill(Pid::from_raw(pid), signal).with_context(|| format!("sending {signal} to {pid}"))
}

/// Returns random bits that cannot be guessed.
fn token() -> Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok().context("reading random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
