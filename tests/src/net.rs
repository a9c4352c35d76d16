//! Network namespaces and the links between them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// The folder of named namespaces, as used by `ip netns` and `nsenter --net=`.
pub const NETNS_DIR: &str = "/run/netns";
/// Prefix of every name created here.
const PREFIX: &str = "vst";

static CLEANED: Once = Once::new();
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Returns a number that is unique within this process.
pub fn unique() -> u32 {
    COUNTER.fetch_add(1, Ordering::Relaxed)
}

/// Returns why tests with namespaces cannot run here, or `None` if they can.
pub fn unavailable() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() { Some("needs root (network namespaces and BPF)") } else { None }
}

/// Skips a test, with a message, on a machine that cannot run it.
#[macro_export]
macro_rules! skip_without_root {
    () => {
        if let Some(why) = $crate::net::unavailable() {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
}

/// A network namespace with loopback up; removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Creates the namespace `vst-<pid>-<n>-<role>`.
    pub fn new(role: &str) -> Result<Self> {
        Self::named(format!("{PREFIX}-{}-{}-{role}", std::process::id(), unique()))
    }

    /// Creates a namespace with exactly this name.
    pub fn named(name: String) -> Result<Self> {
        CLEANED.call_once(remove_stale);
        mount_netns()?;
        let path = Path::new(NETNS_DIR).join(&name);
        File::create_new(&path).with_context(|| format!("creating {}", path.display()))?;
        // A namespace belongs to a thread; the bind mount keeps it after the thread has ended.
        let made = std::thread::scope(|scope| {
            scope
                .spawn(|| -> Result<()> {
                    unshare(CloneFlags::CLONE_NEWNET).context("unshare(CLONE_NEWNET)")?;
                    let own = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
                    mount(Some(own.as_str()), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                        .with_context(|| format!("mounting {}", path.display()))
                })
                .join()
                .expect("the thread does not panic")
        });
        if let Err(error) = made {
            remove(&path);
            return Err(error);
        }
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let namespace = Self { name, file };
        // No duplicate address detection: addresses are usable at once. No router advertisements or
        // solicitations: no stray traffic.
        namespace.sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        namespace.sysctl("net/ipv6/conf/default/accept_ra", "0")?;
        namespace.sysctl("net/ipv6/conf/default/router_solicitations", "0")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name under `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file to pass to `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// Runs a closure on a thread inside the namespace. Sockets it opens stay in the namespace.
    pub fn run<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                closure()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace permanently.
    pub fn enter(&self) {
        setns(&self.file, CloneFlags::CLONE_NEWNET).expect("the namespace's file is open and we are root");
    }

    /// Builds a command that runs inside the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let fd = self.file.as_raw_fd();
        let mut command = Command::new(program);
        // SAFETY: between fork and exec the closure only calls setns(2), which is async-signal-safe. The
        // descriptor is inherited by fork and stays open as long as `self`. If it is closed earlier, setns(2)
        // and so the spawn fails.
        unsafe {
            command.pre_exec(move || {
                if libc::setns(fd, libc::CLONE_NEWNET) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
    }

    /// Runs `ip -batch` inside the namespace: one command per line, without the leading `ip`.
    pub fn ip(&self, batch: &str) -> Result<()> {
        self.feed("ip", &["-batch", "-"], "iproute2", batch)
    }

    /// Runs `nft` inside the namespace: rules as in its files.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.feed("nft", &["-f", "-"], "nftables", rules)
    }

    /// Runs a program of this Debian package that reads what it is to do.
    fn feed(&self, program: &str, arguments: &[&str], package: &str, text: &str) -> Result<()> {
        let mut child = self
            .command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `{program}` (package {package})"))?;
        let mut stdin = child.stdin.take().with_context(|| format!("stdin of `{program}` is piped"))?;
        stdin.write_all(text.as_bytes()).with_context(|| format!("writing to `{program}`"))?;
        drop(stdin);
        let output = child.wait_with_output().with_context(|| format!("waiting for `{program}`"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("in {}: {program} said: {}\nof:\n{text}", self.name, said.trim());
        }
        Ok(())
    }

    /// Writes `/proc/sys/<key>` as seen from inside the namespace.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        self.run(|| fs::write(&path, value)).with_context(|| format!("writing {value} to {}", path.display()))
    }

    /// Returns a counter of the namespace's own stack, such as `OutRsts` of `Tcp`.
    pub fn statistic(&self, group: &str, name: &str) -> Result<u64> {
        // "net" is the calling process's first thread's, "thread-self/net" that of this thread.
        let files = ["snmp", "netstat"].map(|file| Path::new("/proc/thread-self/net").join(file));
        let texts = self.run(|| files.map(fs::read_to_string));
        let texts =
            texts.into_iter().collect::<Result<String, _>>().context("reading counters of the stack")?;
        let found = statistic(&texts, group, name);
        found.with_context(|| format!("no counter {name} of {group} in {}", self.name))
    }

    /// Enables forwarding of IPv4 and IPv6.
    pub fn forward(&self) -> Result<()> {
        self.sysctl("net/ipv4/ip_forward", "1")?;
        self.sysctl("net/ipv6/conf/all/forwarding", "1")
    }

    /// Returns the interface index of a device.
    pub fn ifindex(&self, device: &str) -> Result<u32> {
        self.run(|| nix::net::if_::if_nametoindex(device))
            .with_context(|| format!("no device {device} in {}", self.name))
    }

    /// Returns the link-layer address of a device.
    pub fn mac(&self, device: &str) -> Result<[u8; 6]> {
        let output = self.command("ip").args(["-o", "link", "show", "dev", device]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mac = text.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
        let mut bytes = [0; 6];
        let mut parts = mac.with_context(|| format!("no MAC of {device} in: {text}"))?.split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next().unwrap_or_default(), 16).context("reading a MAC")?;
        }
        Ok(bytes)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.path());
    }
}

/// Finds a counter in the texts of `/proc/net/snmp` and `/proc/net/netstat`: of each group a line of names, and one of values.
fn statistic(texts: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = texts.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(found, _)| *found == name)?.1.parse().ok()
}

/// One end of a link: a device name in a namespace.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    pub namespace: &'a Namespace,
    pub device: &'a str,
    /// With prefix length, e.g. `10.97.1.1/24`, `fd97:1::1/64`.
    pub addresses: &'a [&'a str],
}

/// Creates a veth pair between two namespaces and sets both ends up.
pub fn veth(left: End<'_>, right: End<'_>, mtu: u16) -> Result<()> {
    veth_at(None, left, right, mtu)
}

/// The same, with this index of the left end, or the next one that is free.
pub fn veth_at(index: Option<u32>, left: End<'_>, right: End<'_>, mtu: u16) -> Result<()> {
    let (ours, theirs) = (left.device, right.device);
    let index = index.map(|index| format!("index {index} ")).unwrap_or_default();
    let peer = right.namespace.path();
    left.namespace.ip(&format!(
        "link add {ours} {index}mtu {mtu} type veth peer name {theirs} mtu {mtu} netns {}\n",
        peer.display()
    ))?;
    for end in [left, right] {
        let mut batch = String::new();
        for address in end.addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            batch.push_str(&format!("addr add {address} dev {}{nodad}\n", end.device));
        }
        batch.push_str(&format!("link set {} up\n", end.device));
        end.namespace.ip(&batch)?;
    }
    Ok(())
}

/// Moves the calling thread into the namespace of this file permanently.
pub fn enter(netns: &Path) -> Result<()> {
    let file = File::open(netns).with_context(|| format!("opening {}", netns.display()))?;
    setns(&file, CloneFlags::CLONE_NEWNET).context("entering a network namespace")
}

/// Makes the folder of namespaces a mount point, as the first `ip netns add` on a machine does. If that
/// command did it while tests have namespaces there, the mount would cover them: they could not be unmounted
/// and would remain.
fn mount_netns() -> Result<()> {
    fs::create_dir_all(NETNS_DIR).with_context(|| format!("creating {NETNS_DIR}"))?;
    // One process at a time: a second mount would cover the namespaces under the first.
    let folder = File::open(NETNS_DIR).with_context(|| format!("opening {NETNS_DIR}"))?;
    let _lock = Flock::lock(folder, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    if is_mounted(NETNS_DIR)? {
        return Ok(());
    }
    let none = None::<&str>;
    mount(Some(NETNS_DIR), NETNS_DIR, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
        .and_then(|()| mount(none, NETNS_DIR, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none))
        .with_context(|| format!("mounting {NETNS_DIR}"))
}

/// Unmounts and removes a namespace's file. A process that runs in the namespace keeps it alive until the
/// process ends.
pub fn remove(path: &Path) {
    if let Err(error) = umount2(path, MntFlags::MNT_DETACH)
        && error != nix::errno::Errno::EINVAL
    {
        eprintln!("cannot unmount {}: {error}", path.display());
    }
    if let Err(error) = fs::remove_file(path) {
        eprintln!("cannot remove {}: {error}", path.display());
    }
}

/// Removes what killed test processes left behind: namespaces and pins whose pid belongs to no process.
fn remove_stale() {
    let dead = |name: &str, prefix: &str| {
        let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next());
        pid.and_then(|pid| pid.parse::<u32>().ok())
            .is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    for (folder, prefix) in [(NETNS_DIR, "vst-"), (BPF_DIR, PINS_PREFIX)] {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !dead(&name.to_string_lossy(), prefix) {
                continue;
            }
            if folder == NETNS_DIR {
                remove(&entry.path());
            } else if let Err(error) = fs::remove_dir_all(entry.path()) {
                eprintln!("cannot remove {}: {error}", entry.path().display());
            }
        }
    }
}

/// The mount point of the BPF file system.
pub const BPF_DIR: &str = "/sys/fs/bpf";
const PINS_PREFIX: &str = "vestibule-test-";

/// A folder for this test's own pins: `/sys/fs/bpf/vestibule-test-<pid>-<n>`. Dropping it removes it with its
/// contents, which also detaches pinned links.
#[derive(Debug)]
pub struct Pins {
    path: PathBuf,
}

impl Pins {
    /// Mounts the BPF file system if it is not mounted; does not create the folder.
    pub fn new() -> Result<Self> {
        CLEANED.call_once(remove_stale);
        mount_bpf()?;
        Ok(Self {
            path: Path::new(BPF_DIR).join(format!("{PINS_PREFIX}{}-{}", std::process::id(), unique())),
        })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.path.exists()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn is_mounted(folder: &str) -> Result<bool> {
    let mounts = fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(folder)))
}

/// Mounts the BPF file system at [`BPF_DIR`] unless it is mounted.
fn mount_bpf() -> Result<()> {
    if is_mounted(BPF_DIR)? {
        return Ok(());
    }
    mount(Some("bpf"), BPF_DIR, Some("bpf"), MsFlags::empty(), None::<&str>)
        .context("mounting the BPF file system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_below_its_name() {
        let texts = "Tcp: A OutRsts\nTcp: 1 23\nTcpExt: OutRsts B\nTcpExt: 4 5\n";
        assert_eq!(statistic(texts, "Tcp", "OutRsts"), Some(23));
        assert_eq!(statistic(texts, "TcpExt", "B"), Some(5));
        assert_eq!(statistic(texts, "Tcp", "B"), None);
        assert_eq!(statistic(texts, "Udp", "A"), None);
    }
}
