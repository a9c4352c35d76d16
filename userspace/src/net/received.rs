//! How many frames a device has received.

use std::fs;

/// Of the process's network namespace (proc_pid_net(5)).
const DEVICES: &str = "/proc/self/net/dev";

/// Returns the number of frames that a device has received since it was made; `None`: it cannot be read.
pub fn frames(device: &str) -> Option<u64> {
    find(&fs::read_to_string(DEVICES).ok()?, device)
}

fn find(text: &str, device: &str) -> Option<u64> {
    let of = |line: &str| {
        let (name, counts) = line.trim_start().split_once(':')?;
        (name == device).then(|| counts.split_whitespace().nth(1)?.parse().ok())?
    };
    text.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1000      20    0    0    0     0          0         0     1000      20    0    0    0     0       0          0
  eth0:99887766 1234    0    0    0     0          0         0       70       1    0    0    0     0       0          0
";

    #[test]
    fn the_second_number_behind_the_name_counts_frames() {
        assert_eq!([find(TEXT, "eth0"), find(TEXT, "lo"), find(TEXT, "eth")], [Some(1234), Some(20), None]);
        assert!(frames("lo").is_some());
        assert_eq!(frames("no such device"), None);
    }
}
