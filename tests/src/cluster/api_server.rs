//! etcd and an API server, without nodes: ready in three seconds.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::KeyPair;
use ring::rand::{SecureRandom, SystemRandom};

use super::places;
use super::turn::Turn;
use super::{Kubectl, Rest};
use crate::net::Namespace;
use crate::temp::TempDir;
use crate::tls::{Authority, Files};

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(60);
/// How long an orderly end may take.
const STOP: Duration = Duration::from_secs(10);

/// What an API server is started with.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Where it runs and is reached on loopback; where the test runs when `None`.
    pub namespace: Option<&'a Namespace>,
    /// Without the definitions of the Gateway API and ours.
    pub bare: bool,
    /// Writes who asked for what to [`ApiServer::audit_log`].
    pub audit: bool,
    /// More arguments of kube-apiserver.
    pub arguments: &'a [&'a str],
    /// While no other test has a server: for those that measure.
    pub alone: bool,
}

/// etcd and kube-apiserver on loopback, with RBAC and the usual admission. Dropping it ends both.
#[derive(Debug)]
pub struct ApiServer {
    etcd: Child,
    server: Option<Child>,
    programs: PathBuf,
    netns: Option<PathBuf>,
    arguments: Vec<String>,
    kubectl: Kubectl,
    rest: Rest,
    _files: Files,
    // Behind the programs: they have ended when their files go.
    folder: TempDir,
    _turn: Turn,
}

impl ApiServer {
    /// Starts one with the definitions of the Gateway API and ours.
    pub fn start() -> Result<Self> {
        Self::with(&Options::default())
    }

    /// Starts one.
    pub fn with(options: &Options<'_>) -> Result<Self> {
        let turn = Turn::take(options.alone);
        places::end_orphans();
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
        let etcd = start_etcd(&programs, netns.as_deref(), &folder, clients, peers)?;
        let mut server = Self {
            etcd,
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
        if !options.bare {
            server.define()?;
        }
        Ok(server)
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

    /// The administrator's way by HTTP.
    pub fn rest(&self) -> &Rest {
        &self.rest
    }

    /// A line of JSON for each request of a ServiceAccount, with [`Options::audit`]: `audit.k8s.io/v1` Events.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.path().join("audit.json")
    }

    /// Ends the API server in order; etcd and so all objects stay.
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

    /// Kills the API server, as a crash does.
    pub fn crash(&mut self) -> Result<()> {
        let mut server = self.server.take().context("the API server does not run")?;
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Starts it again at the same address, and waits until it is ready.
    pub fn launch(&mut self) -> Result<()> {
        ensure!(self.server.is_none(), "the API server runs already");
        let mut command = places::command(self.netns.as_deref(), &self.programs.join("kube-apiserver"));
        command.args(&self.arguments);
        self.server = Some(spawn(command, &self.folder, "kube-apiserver")?);
        self.wait_ready()
    }

    /// Stops and starts it.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()
    }

    /// From now on it answers nothing, and all connections stay open: what a watch cut half-way sees.
    pub fn freeze(&self) -> Result<()> {
        signal(self.server.as_ref().context("the API server does not run")?, Signal::SIGSTOP)
    }

    /// It goes on.
    pub fn thaw(&self) -> Result<()> {
        signal(self.server.as_ref().context("the API server does not run")?, Signal::SIGCONT)
    }

    /// What it and etcd wrote to their logs.
    pub fn logs(&self) -> String {
        let read = |name: &str| {
            let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(20)..].join("\n")
        };
        format!("etcd:\n{}\nkube-apiserver:\n{}", read("etcd.log"), read("kube-apiserver.log"))
    }

    fn wait_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < START {
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
        bail!("the API server is not ready after {START:?}:\n{}", self.logs())
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

/// Everything a ServiceAccount asks for, when it is answered and, of watches, when they begin.
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
        // An endpoint of the Service `kubernetes` must not be on loopback; nobody goes there.
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
        // A stop waits for requests in flight; watches of tests would hold it for a minute.
        "--shutdown-delay-duration=0s".into(),
        "--shutdown-watch-termination-grace-period=0s".into(),
    ];
    if options.audit {
        arguments.push(format!("--audit-policy-file={}", path("audit.yaml")));
        arguments.push(format!("--audit-log-path={}", path("audit.json")));
    }
    arguments.extend(options.arguments.iter().map(ToString::to_string));
    arguments
}

fn start_etcd(
    programs: &Path,
    netns: Option<&Path>,
    folder: &TempDir,
    clients: u16,
    peers: u16,
) -> Result<Child> {
    let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let mut command = places::command(netns, &programs.join("etcd"));
    command.arg("--data-dir").arg(folder.path().join("etcd"));
    command.args(["--unsafe-no-fsync", "--log-level", "error"]);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    spawn(command, folder, "etcd")
}

/// Starts a program with its log and its process's number in the folder, where the next test process finds it should
/// this one be killed.
fn spawn(mut command: Command, folder: &TempDir, name: &str) -> Result<Child> {
    let log = folder.path().join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(log).context("opening a log")?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = command.spawn().with_context(|| format!("starting {name}"))?;
    folder.write(&format!("{name}.pid"), child.id().to_string())?;
    Ok(child)
}

/// Ports that nobody listens on now, held together so that they differ.
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

/// Bits nobody can guess.
fn token() -> Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok().context("reading random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
