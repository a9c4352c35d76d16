//! The real binary, run in one of the test's namespaces.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::config::Config;
use crate::net::{Namespace, Pins};
use crate::temp::TempDir;

/// Time limit for a start or a reload; a million routes take a while.
const START: Duration = Duration::from_secs(60);
/// Time limit for the daemon to end after a signal.
const STOP: Duration = Duration::from_secs(10);

/// Returns the path of the binary: `VESTIBULE_BIN`, else the newest `vestibule` below this test's target
/// folder.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("VESTIBULE_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("own path")?;
    let targets =
        own.ancestors().flat_map(|folder| ["release", "debug"].map(|p| folder.join(p).join("vestibule")));
    let built = targets.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).max();
    let (_, path) = built.context("no `vestibule` is built; run `cargo xtask build` or set VESTIBULE_BIN")?;
    Ok(path)
}

/// A thread of the daemon that is stopped until this is dropped, which only the test's thread that stopped it may do (ptrace(2)).
#[derive(Debug)]
pub struct StoppedThread(Pid);

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // The daemon may be gone.
        let _ = ptrace::detach(self.0, None);
    }
}

/// `vestibule run` with its configuration file, pins and log. Dropping it kills the daemon and detaches the
/// programs.
#[derive(Debug)]
pub struct Daemon {
    binary: PathBuf,
    folder: TempDir,
    pins: Pins,
    netns: PathBuf,
    arguments: Vec<String>,
    /// `VESTIBULE_LOG`.
    log: Option<&'static str>,
    notify: UnixDatagram,
    child: Option<Child>,
}

impl Daemon {
    /// Starts the daemon in a namespace and waits until it reports READY. Adds `arguments` to
    /// `run --config FILE`.
    pub fn start(namespace: &Namespace, config: &Config, arguments: &[&str]) -> Result<Self> {
        let mut daemon = Self::prepare(namespace, config, arguments)?;
        daemon.launch(namespace)?;
        Ok(daemon)
    }

    /// Prepares everything without starting the daemon.
    pub fn prepare(namespace: &Namespace, config: &Config, arguments: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        folder.write("config.json", config.json())?;
        let socket = folder.path().join("notify");
        let notify = UnixDatagram::bind(&socket).with_context(|| format!("binding {}", socket.display()))?;
        notify.set_read_timeout(Some(Duration::from_millis(20)))?;
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let (binary, pins, netns) = (binary()?, Pins::new()?, namespace.path());
        Ok(Self { binary, folder, pins, netns, arguments, log: None, notify, child: None })
    }

    /// Sets what the daemon logs. Must be called before the start.
    pub fn log_more(&mut self, filter: &'static str) {
        self.log = Some(filter);
    }

    /// Uses another build than [`binary`] for the daemon and for all CLI commands. Must be called before the
    /// start.
    pub fn use_binary(&mut self, path: &Path) {
        path.clone_into(&mut self.binary);
    }

    /// Starts the daemon, also after it has ended, and waits until it reports READY.
    pub fn launch(&mut self, namespace: &Namespace) -> Result<()> {
        ensure!(self.child.is_none(), "the daemon runs already");
        self.forget_messages();
        let log =
            File::options().create(true).append(true).open(self.log_path()).context("opening the log")?;
        let child = self
            .command(namespace)?
            .args(["run", "--config"])
            .arg(self.config_path())
            .args(&self.arguments)
            .envs(self.log.map(|filter| ("VESTIBULE_LOG", filter)))
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting vestibule")?;
        self.child = Some(child);
        self.wait_ready()
    }

    /// Discards earlier notifications of the daemon.
    fn forget_messages(&self) {
        while self.notify.recv(&mut [0; 4096]).is_ok() {}
    }

    fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut message = [0; 4096];
        while start.elapsed() < START {
            if let Ok(length) = self.notify.recv(&mut message)
                && is_ready(&message[..length])
            {
                return Ok(());
            }
            if let Some(status) = self.child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                self.child = None;
                bail!("vestibule ended with {status}:\n{}", self.log());
            }
        }
        bail!("vestibule is not ready after {START:?}:\n{}", self.log())
    }

    /// Builds a CLI command with our pins, in this namespace.
    pub fn command(&self, namespace: &Namespace) -> Result<Command> {
        let mut command = namespace.command(&self.binary);
        command.arg("--pins").arg(self.pins.path());
        Ok(command)
    }

    /// Runs a CLI command. It needs no network, so it runs in the test's own namespace.
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.binary);
        command.arg("--pins").arg(self.pins.path()).args(arguments);
        command.output().context("running vestibule")
    }

    /// Runs a CLI command that must succeed; returns what it printed.
    pub fn cli_text(&self, arguments: &[&str]) -> Result<String> {
        let output = self.cli(arguments)?;
        if !output.status.success() {
            bail!("vestibule {arguments:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the packets per reason name, as `vestibule reasons -o json` reports them.
    pub fn reasons(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.cli_text(&["reasons", "-o", "json"])?;
        crate::report::reasons(&text).with_context(|| format!("reading: {text}"))
    }

    /// Reloads with another configuration; see [`Self::reload_text`].
    pub fn reload(&self, config: &Config) -> Result<Duration> {
        self.reload_text(&config.json())
    }

    /// Writes another configuration without sending a signal to the daemon.
    pub fn write_config(&self, text: &str) -> Result<()> {
        self.folder.write("config.json", text).map(drop)
    }

    /// Whether the daemon runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Writes any text as the configuration, sends SIGHUP, and waits until the daemon reports READY again.
    /// Returns the time since SIGHUP.
    pub fn reload_text(&self, text: &str) -> Result<Duration> {
        self.forget_messages();
        self.folder.write("config.json", text)?;
        let start = Instant::now();
        self.signal(Signal::SIGHUP)?;
        let mut message = [0; 4096];
        while start.elapsed() < START {
            if let Ok(length) = self.notify.recv(&mut message)
                && is_ready(&message[..length])
            {
                return Ok(start.elapsed());
            }
        }
        bail!("the reload did not end within {START:?}:\n{}", self.log())
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("the daemon does not run")?;
        kill(Pid::from_raw(child.id().cast_signed()), signal).context("sending a signal")
    }

    /// Stops one thread of the daemon, by its name, while the others go on.
    pub fn stop_thread(&self, name: &str) -> Result<StoppedThread> {
        let pid = self.pid().context("the daemon does not run")?;
        let named = |id: &i32| {
            fs::read_to_string(format!("/proc/{pid}/task/{id}/comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        };
        let ids = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
        let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(named);
        let thread = Pid::from_raw(ids.next().with_context(|| format!("no thread {name}"))?);
        ptrace::seize(thread, ptrace::Options::empty()).context("seizing a thread")?;
        ptrace::interrupt(thread).context("interrupting a thread")?;
        waitpid(thread, Some(WaitPidFlag::__WALL)).context("waiting for a thread to stop")?;
        Ok(StoppedThread(thread))
    }

    /// Ends the daemon with this signal and waits for it. What it attached stays attached.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let mut child = self.child.take().context("the daemon does not run")?;
        let start = Instant::now();
        while start.elapsed() < STOP {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().context("killing vestibule")?;
        child.wait().context("waiting for vestibule")?;
        bail!("vestibule did not end within {STOP:?} of {signal}:\n{}", self.log())
    }

    /// The process ID, while the daemon runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the CPU time that its threads have used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let child = self.child.as_ref().context("the daemon does not run")?;
        let mut used_ns = 0;
        for task in fs::read_dir(format!("/proc/{}/task", child.id())).context("listing threads")? {
            // Nanoseconds on a CPU, nanoseconds waiting for one, number of times run
            // (Documentation/scheduler/sched-stats.rst).
            let text = fs::read_to_string(task?.path().join("schedstat")).context("reading schedstat")?;
            used_ns +=
                text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(used_ns))
    }

    /// Returns the daemon's resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let child = self.child.as_ref().context("the daemon does not run")?;
        // Sizes in pages: total, resident, shared (proc(5)).
        let text = fs::read_to_string(format!("/proc/{}/statm", child.id())).context("reading statm")?;
        let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
        Ok(pages.context("statm has no second number")? * 4096)
    }

    /// The folder of its pins.
    pub fn pins(&self) -> &Path {
        self.pins.path()
    }

    /// Its configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.folder.path().join("config.json")
    }

    /// Returns its output.
    pub fn whole_log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Returns the last lines of its output.
    pub fn log(&self) -> String {
        let text = self.whole_log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

/// Whether a message of sd_notify(3) reports READY.
fn is_ready(message: &[u8]) -> bool {
    message.split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("vestibule (network namespace {}) said:\n{}", self.netns.display(), self.log());
            if let Ok(reasons) = self.cli_text(&["reasons"]) {
                eprintln!("{reasons}");
            }
        }
        if let Some(mut child) = self.child.take() {
            // It may have ended already: then both calls fail, and there is nothing left to do.
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.pins.path().exists() {
            match self.cli(&["detach"]) {
                Ok(output) if output.status.success() => {}
                Ok(output) => eprintln!("vestibule detach: {}", String::from_utf8_lossy(&output.stderr)),
                Err(error) => eprintln!("vestibule detach: {error:#}"),
            }
        }
    }
}
