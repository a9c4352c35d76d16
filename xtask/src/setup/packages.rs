//! Programs and headers from the distribution: installs Debian's packages. On other systems, or without root,
//! says what to install.

use crate::failure::{Failure, Outcome};
use crate::process;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A package, how to detect it, and what it is for.
pub(crate) struct Package {
    debian: &'static str,
    sign: Sign,
    why: &'static str,
}

/// What shows that a package is installed, whatever installed it.
enum Sign {
    Program(&'static str),
    File(&'static str),
}

/// Packages to compile and link.
pub(crate) const BUILD: &[Package] = &[
    Package { debian: "gcc", sign: Sign::Program("cc"), why: "links every Rust program" },
    Package {
        debian: "libc6-dev",
        sign: Sign::File("/usr/include/stdio.h"),
        why: "the C library to link with",
    },
];

/// Packages to create network namespaces and connect through them.
pub(crate) const LAB: &[Package] = &[
    Package { debian: "iproute2", sign: Sign::Program("ip"), why: "creates the lab's namespaces" },
    Package { debian: "ethtool", sign: Sign::Program("ethtool"), why: "sets offloads of the lab's devices" },
    Package {
        debian: "openssl",
        sign: Sign::Program("openssl"),
        why: "certificates, TLS clients and servers",
    },
    Package { debian: "curl", sign: Sign::Program("curl"), why: "a TLS client" },
];

/// Packages that tests in the lab need as well.
pub(crate) const TESTS: &[Package] = &[
    Package {
        debian: "strace",
        sign: Sign::Program("strace"),
        why: "kills a daemon at a chosen system call",
    },
    Package { debian: "bpftool", sign: Sign::Program("bpftool"), why: "shows pinned maps and programs" },
    Package { debian: "python3", sign: Sign::Program("python3"), why: "a TLS client and server" },
    Package { debian: "nftables", sign: Sign::Program("nft"), why: "masquerades a pod's connections" },
    Package {
        debian: "iputils-arping",
        sign: Sign::Program("arping"),
        why: "asks for announced addresses of IPv4",
    },
    Package { debian: "ndisc6", sign: Sign::Program("ndisc6"), why: "asks for announced addresses of IPv6" },
];

/// Packages to compare with. Their services are not used here: stop them if the installation starts them.
pub(crate) const PEERS: &[Package] = &[
    Package { debian: "nftables", sign: Sign::Program("nft"), why: "a peer in the benchmark" },
    Package { debian: "haproxy", sign: Sign::Program("haproxy"), why: "a peer in the benchmark" },
    Package { debian: "nginx-core", sign: Sign::Program("nginx"), why: "a peer in the benchmark" },
    Package {
        debian: "libnginx-mod-stream",
        sign: Sign::File("/usr/lib/nginx/modules/ngx_stream_module.so"),
        why: "nginx's TLS passthrough",
    },
];

/// Packages to run pods on nodes that are network namespaces.
pub(crate) const CLUSTER: &[Package] = &[
    Package { debian: "containerd", sign: Sign::Program("containerd"), why: "runs the pods of a node" },
    Package { debian: "runc", sign: Sign::Program("runc"), why: "starts their containers" },
    Package {
        debian: "containernetworking-plugins",
        sign: Sign::File("/usr/lib/cni/ptp"),
        why: "connects the pods of a node",
    },
    Package { debian: "nftables", sign: Sign::Program("nft"), why: "kube-proxy's rules" },
    Package { debian: "iptables", sign: Sign::Program("iptables"), why: "kubelet looks for it" },
    Package { debian: "conntrack", sign: Sign::Program("conntrack"), why: "kube-proxy ends flows with it" },
    Package { debian: "procps", sign: Sign::Program("pgrep"), why: "finds a node's first process" },
    Package { debian: "mount", sign: Sign::Program("mount"), why: "a node's own file systems" },
    Package { debian: "util-linux", sign: Sign::Program("nsenter"), why: "enters a node" },
];

/// Packages to link libFuzzer.
pub(crate) const FUZZ: &[Package] =
    &[Package { debian: "g++", sign: Sign::Program("c++"), why: "compiles the fuzzer's runtime" }];

/// Installs those of `packages` that are missing.
pub(crate) fn install(packages: &[Package]) -> Outcome {
    let missing: Vec<&Package> = packages.iter().filter(|package| !package.is_there()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        super::announce(&format!("Debian package {}", package.debian), package.why);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.debian).collect();
    let by_hand = format!("as root: apt-get install {}", names.join(" "));
    let step = format!("installing {}", names.join(" "));
    if !process::found("apt-get") {
        let remedy =
            format!("install what Debian calls {} with this system's package manager", names.join(" "));
        return Err(Failure::new(step, "this system has no apt-get", remedy));
    }
    if !process::is_root() {
        return Err(Failure::new(step, "only root may install packages", by_hand));
    }
    apt_get(&step, &["update"], "check the network and /etc/apt/sources.list")?;
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(&names);
    apt_get(&step, &arguments, &by_hand)?;
    match missing.iter().find(|package| !package.is_there()) {
        None => Ok(()),
        Some(package) => {
            let reason = format!("{} is installed, yet {} is not found", package.debian, package.sign.text());
            Err(Failure::new(step, reason, "check PATH, then run the command again"))
        }
    }
}

/// Downloads a package, without those it depends on, and unpacks it below a folder. Nothing is installed, so no service of
/// it starts.
pub(super) fn unpack(debian: &str, why: &str, folder: &Path, remedy: &str) -> Outcome {
    let step = format!("downloading {debian}");
    if !process::found("apt-get") {
        return Err(Failure::new(step, "this system has no apt-get", remedy));
    }
    super::announce(&format!("Debian package {debian}, outside the system"), why);
    let unwritable =
        |error| Failure::new(&step, format!("{}: {error}", folder.display()), "check the folder's owner");
    let archives = folder.join("archives");
    // What an interrupted download left would count as a second archive.
    let _ = fs::remove_dir_all(&archives);
    fs::create_dir_all(&archives).map_err(unwritable)?;
    if process::is_root() {
        apt_get(&step, &["update"], "check the network and /etc/apt/sources.list")?;
    }
    // As the user that runs this: apt's own user cannot write there.
    let download = ["-o", "APT::Sandbox::User=root", "download", debian];
    process::run(&step, apt(&download).current_dir(&archives), remedy)?;
    for archive in fs::read_dir(&archives).map_err(unwritable)?.flatten() {
        let mut command = process::command("dpkg-deb");
        command.arg("--extract").arg(archive.path()).arg(folder);
        process::run(&step, &mut command, remedy)?;
    }
    fs::remove_dir_all(&archives).map_err(unwritable)
}

fn apt_get(step: &str, arguments: &[&str], remedy: &str) -> Outcome {
    process::run(step, &mut apt(arguments), remedy)
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = process::command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-q");
    if process::quiet() {
        command.arg("-q").args(["-o", "Dpkg::Use-Pty=0"]);
    }
    command.args(arguments);
    command
}

impl Package {
    fn is_there(&self) -> bool {
        match self.sign {
            Sign::Program(name) => process::found(name),
            Sign::File(path) => Path::new(path).is_file(),
        }
    }
}

impl Sign {
    fn text(&self) -> &'static str {
        match self {
            Self::Program(text) | Self::File(text) => text,
        }
    }
}
