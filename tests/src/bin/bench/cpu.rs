//! CPU time: exact for our processes, and for the machine as a whole.
//!
//! A packet's softirq runs in the context of the process that sent the packet, or in ksoftirqd. The kernel's
//! exact count of a thread's run time includes it, unless the kernel counts interrupts separately
//! (`CONFIG_IRQ_TIME_ACCOUNTING`).

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    at: Instant,
    ours_ns: u64,
    idle_ticks: u64,
}

/// The CPU time used between two marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// By our processes and ksoftirqd.
    pub(crate) ours: Duration,
    /// Share of all CPUs' time that other processes used, 0 to 1.
    pub(crate) foreign: f64,
}

/// Returns the number of all CPUs, not only of those that we may use, so that other processes' load is seen.
pub(crate) fn cpus() -> usize {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count().max(1)
}

/// Returns the ksoftirqd threads, which process packets when no other thread's context does.
pub(crate) fn softirq_daemons() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    })
    .collect()
}

impl Mark {
    /// Reads the current counters.
    pub(crate) fn now(pids: &[u32]) -> Result<Self> {
        let ours_ns = pids.iter().map(|pid| process_ns(*pid)).sum::<Result<u64>>()?;
        Ok(Self { at: Instant::now(), ours_ns, idle_ticks: idle_ticks()? })
    }

    /// Returns what the same processes have used since this mark.
    pub(crate) fn until_now(&self, pids: &[u32]) -> Result<Used> {
        let now = Self::now(pids)?;
        let ours = Duration::from_nanos(now.ours_ns.saturating_sub(self.ours_ns));
        let all = (now.at - self.at).as_secs_f64() * cpus() as f64;
        // USER_HZ is 100 on every architecture in use.
        let idle = now.idle_ticks.saturating_sub(self.idle_ticks) as f64 / 100.0;
        Ok(Used { ours, foreign: ((all - idle - ours.as_secs_f64()) / all).clamp(0.0, 1.0) })
    }
}

/// Returns the nanoseconds that the threads of a process have run.
fn process_ns(pid: u32) -> Result<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} ended"))?;
    let mut sum = 0;
    for task in tasks {
        // Time run, time waited, times run (Documentation/scheduler/sched-stats.rst). A thread may have ended
        // by then.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Returns the ticks that all CPUs were idle.
fn idle_ticks() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    idle_of(&text).context("no line `cpu` in /proc/stat")
}

/// Idle and waiting for disks: the fourth and fifth numbers.
fn idle_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    Some(line.split_whitespace().skip(3).take(2).filter_map(|field| field.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_disk_waits_are_idle() {
        assert_eq!(idle_of("cpu  10 20 30 400 5 6 7 8 0 0\ncpu0 1 2 3 4 5\n"), Some(405));
        assert_eq!(idle_of("intr 5"), None);
    }

    #[test]
    fn time_spent_is_seen() {
        let pids = [std::process::id()];
        let mark = Mark::now(&pids).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {}
        let used = mark.until_now(&pids).unwrap();
        assert!(used.ours > Duration::from_millis(5), "{used:?}");
        assert!((0.0..=1.0).contains(&used.foreign));
    }
}
