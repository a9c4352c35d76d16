//! A lab that stays: a process in the background holds it until it is told to stop.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, dup2_stderr, dup2_stdout};

use crate::{demo, failed};

/// First part of the names of a kept lab's namespaces.
const NAME: &str = "vestibule-lab";
/// Who holds it.
const PID_FILE: &str = "/run/vestibule-lab.pid";

/// Starts the process that makes and holds the lab; shows what it prints until the lab stands.
pub(crate) fn begin(what: &str) -> ExitCode {
    if holder().is_some() {
        return failed("a lab is running already", "cargo xtask lab --stop");
    }
    remove_leftovers();
    match start(what) {
        Ok(code) => code,
        Err(error) => failed(&format!("starting the lab: {error}"), "the reason stands above"),
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
    // The end of the output means: the lab stands, or the process ended.
    std::thread::sleep(Duration::from_millis(50));
    match child.try_wait()? {
        None => Ok(ExitCode::SUCCESS),
        Some(_) => Ok(ExitCode::FAILURE),
    }
}

/// Makes the lab and holds it until SIGTERM.
pub(crate) fn hold(what: &str) -> ExitCode {
    // Before any thread begins, so that all inherit it.
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
    // An error would mean that nothing can be waited for: then the lab ends.
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
        return failed(&format!("telling process {pid} to stop: {error}"), "run it as root");
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

/// The process that holds a lab; a process of another program may have its number by now.
fn holder() -> Option<Pid> {
    let pid: i32 = fs::read_to_string(PID_FILE).ok()?.trim().parse().ok()?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    (arguments.split(|byte| *byte == 0).nth(1)? == b"hold").then(|| Pid::from_raw(pid))
}

/// What a holder that was killed left behind.
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

/// Points standard output and error elsewhere, which tells `begin` that the lab stands.
fn release_output() -> io::Result<()> {
    io::stdout().flush()?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    Ok(())
}
