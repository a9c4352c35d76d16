//! A lab that keeps running: a background process holds it until it is stopped.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, dup2_stderr, dup2_stdout};

use crate::{demo, failed};

/// Prefix of the names of a kept lab's namespaces.
const NAME: &str = "vestibule-lab";
/// The file with the ID of the process that holds the lab.
const PID_FILE: &str = "/run/vestibule-lab.pid";

/// Starts the process that creates and holds the lab; shows its output until the lab is ready.
pub(crate) fn begin(what: &str) -> ExitCode {
    if holder().is_some() {
        return failed("a lab is running already", "cargo xtask lab --stop");
    }
    remove_leftovers();
    match start(what) {
        Ok(code) => code,
        Err(error) => failed(&format!("starting the lab: {error}"), "see the reason above"),
    }
}

fn start(what: &str) -> io::Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["hold", what]).stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: between fork and exec only setsid(2) is called, which is async-signal-safe. The terminal's signals must
    // not reach a lab that outlives the command.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    if let Some(mut output) = child.stdout.take() {
        io::copy(&mut output, &mut io::stdout())?;
    }
    // The output ends when the lab is ready or when the process has ended.
    std::thread::sleep(Duration::from_millis(50));
    match child.try_wait()? {
        None => Ok(ExitCode::SUCCESS),
        Some(_) => Ok(ExitCode::FAILURE),
    }
}

/// Creates the lab and holds it until SIGTERM or SIGINT.
pub(crate) fn hold(what: &str) -> ExitCode {
    // Before any thread starts, so that all threads inherit the mask.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    if let Err(error) = signals.thread_block() {
        return failed(&format!("blocking signals: {error}"), "this is a bug; please report it");
    }
    let show = match demo::run(Some(NAME), what == "demo") {
        Ok(show) => show,
        Err(code) => return code,
    };
    if let Err(error) = fs::write(PID_FILE, std::process::id().to_string()) {
        return failed(&format!("writing {PID_FILE}: {error}"), "is /run writable?");
    }
    match demo::hints(&show) {
        Ok(hints) => println!("{hints}"),
        Err(error) => eprintln!("{error:#}"),
    }
    if let Err(error) = release_output() {
        eprintln!("giving the terminal back: {error}");
    }
    // If waiting fails, the lab ends at once.
    let _ = signals.wait();
    drop(show);
    let _ = fs::remove_file(PID_FILE);
    ExitCode::SUCCESS
}

/// Ends the lab that was left running.
pub(crate) fn stop() -> ExitCode {
    let Some(pid) = holder() else {
        remove_leftovers();
        println!("no lab is running");
        return ExitCode::SUCCESS;
    };
    if let Err(error) = kill(pid, Signal::SIGTERM) {
        return failed(&format!("stopping process {pid}: {error}"), "run it as root");
    }
    let start = Instant::now();
    while holder().is_some() {
        if start.elapsed() > Duration::from_secs(20) {
            return failed(
                &format!("process {pid} does not end"),
                &format!("kill -9 {pid}, then this again"),
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    remove_leftovers();
    println!("the lab is taken apart");
    ExitCode::SUCCESS
}

/// Returns the process that holds a lab. Another program's process may have the ID now, so the arguments are
/// checked.
fn holder() -> Option<Pid> {
    let pid: i32 = fs::read_to_string(PID_FILE).ok()?.trim().parse().ok()?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    (arguments.split(|byte| *byte == 0).nth(1)? == b"hold").then(|| Pid::from_raw(pid))
}

/// Removes what a killed holder left behind.
fn remove_leftovers() {
    for entry in fs::read_dir(tests::net::NETNS_DIR).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            tests::net::remove(&entry.path());
        }
    }
    if Path::new(PID_FILE).exists() {
        let _ = fs::remove_file(PID_FILE);
    }
}

/// Redirects standard output and error to /dev/null, which shows `start` that the lab is ready.
fn release_output() -> io::Result<()> {
    io::stdout().flush()?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    Ok(())
}
