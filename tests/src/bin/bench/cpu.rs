//! CPU time: of our processes exactly, and of the machine as a whole.
//!
//! A packet's softirq runs in the context of whoever sent it, or in ksoftirqd: the kernel's exact count of the time that
//! a thread ran includes it, as long as the kernel does not count interrupts apart (`CONFIG_IRQ_TIME_ACCOUNTING`).

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A moment's counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    at: Instant,
    ours_ns: u64,
    idle_ticks: u64,
}

/// What passed between two marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// By our processes and ksoftirqd.
    pub(crate) ours: Duration,
    /// Part of all CPUs' time that others used, 0 to 1.
    pub(crate) foreign: f64,
}

/// Of all CPUs, not only of those that we may use: others are to be seen.
pub(crate) fn cpus() -> usize {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count().max(1)
}

/// The processes that do the kernel's packet work when nobody else does.
pub(crate) fn softirq_daemons() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    })
    .collect()
}

impl Mark {
    /// Counters of now.
    pub(crate) fn now(pids: &[u32]) -> Result<Self> {
        let ours_ns = pids.iter().map(|pid| process_ns(*pid)).sum::<Result<u64>>()?;
        Ok(Self { at: Instant::now(), ours_ns, idle_ticks: idle_ticks()? })
    }

    /// What was used since then by the same processes.
    pub(crate) fn until_now(&self, pids: &[u32]) -> Result<Used> {
        let now = Self::now(pids)?;
        let ours = Duration::from_nanos(now.ours_ns.saturating_sub(self.ours_ns));
        let all = (now.at - self.at).as_secs_f64() * cpus() as f64;
        // USER_HZ is 100 on every architecture in use.
        let idle = now.idle_ticks.saturating_sub(self.idle_ticks) as f64 / 100.0;
        Ok(Used { ours, foreign: ((all - idle - ours.as_secs_f64()) / all).clamp(0.0, 1.0) })
    }
}

/// Nanoseconds that the threads of a process have run.
fn process_ns(pid: u32) -> Result<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} ended"))?;
    let mut sum = 0;
    for task in tasks {
        // Time run, time waited, times run (Documentation/scheduler/sched-stats.rst). A thread may end meanwhile.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Ticks that all CPUs were idle.
fn idle_ticks() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    idle_of(&text).context("no line `cpu` in /proc/stat")
}

/// Idle and waiting for disks: the fourth and fifth number.
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
