//! A Kubernetes cluster whose nodes are network namespaces: etcd, API server, kubelets and kube-proxies, built from
//! their Go modules and driven by the scripts in `tests/cluster/`.

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::{image, process, setup};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Number of nodes of a cluster.
const NODES: &str = "3";

/// Runs `cargo xtask cluster ...`. `VESTIBULE_CLUSTER` selects a cluster other than `dev`.
pub(crate) fn run(options: &[String]) -> Outcome {
    let name = env::var("VESTIBULE_CLUSTER").ok().filter(|name| !name.is_empty());
    let cluster = Cluster::named(name.as_deref().unwrap_or("dev"));
    let words: Vec<&str> = options.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["up"] => cluster.up().map(|()| println!("cluster: up; `cargo xtask cluster kubectl get pods -A`")),
        ["down"] => cluster.down(),
        ["kubectl", arguments @ ..] => cluster.kubectl(arguments),
        ["helm", arguments @ ..] => cluster.helm(arguments),
        ["client", "--", program, arguments @ ..] => cluster.enter("client", Path::new(program), arguments),
        ["node", n, "--", command @ ..] if !command.is_empty() => {
            cluster.script("node.sh", [["run", n].as_slice(), command].concat())
        }
        [switch @ ("kill" | "start"), n] => cluster.script("node.sh", [*switch, n]),
        ["load", tars @ ..] if !tars.is_empty() => cluster.script("load.sh", tars),
        ["api", switch @ ("stop" | "start")] => cluster.script("control.sh", [*switch]),
        ["route", nodes @ ..] => cluster.script("route.sh", nodes),
        _ => {
            let reason = format!("`cluster {}` is not a command", words.join(" "));
            Err(Failure::new("reading the command line", reason, "`cargo xtask help` lists the commands"))
        }
    }
}

/// A cluster, running or not.
pub(crate) struct Cluster {
    /// Prefix of its namespaces and cgroups, before `-node1` and the like.
    name: String,
    /// Folder of its certificates, logs and disks.
    folder: PathBuf,
}

impl Cluster {
    fn named(name: &str) -> Self {
        Self { name: format!("vtc-{name}"), folder: process::target().join("cluster").join(name) }
    }

    /// Installs what is missing and starts the cluster.
    fn up(&self) -> Outcome {
        let step = format!("making cluster {}", self.name);
        if let Some(obstacle) = needs::obstacle(Needs::Cluster) {
            return Err(Failure::new(step, obstacle, "as root, with Go in PATH; in a container, privileged"));
        }
        setup::for_tests()?;
        setup::for_cluster()?;
        let (programs, images) = (setup::go::kubernetes()?, setup::go::images()?);
        let mut command = self.command("up.sh");
        command.env("NAME", &self.name).env("NODES", NODES).env("BIN", programs).env("IMAGES", images);
        process::run(&step, &mut command, "cargo xtask cluster down, then up again")
    }

    /// Stops the cluster and removes everything that belongs to it.
    fn down(&self) -> Outcome {
        self.script("down.sh", [""; 0])
    }

    fn script<'a>(&self, name: &str, arguments: impl AsRef<[&'a str]>) -> Outcome {
        let mut command = self.command(name);
        command.args(arguments.as_ref());
        process::run(&format!("running {name}"), &mut command, "see its output above")
    }

    fn command(&self, script: &str) -> Command {
        let mut command = process::command("bash");
        command.arg(process::root().join("tests/cluster").join(script)).arg(&self.folder);
        command
    }

    /// Runs kubectl as the cluster's administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Outcome {
        self.enter("control", &setup::go::kubernetes()?.join("kubectl"), arguments)
    }

    /// Runs helm as the cluster's administrator.
    pub(crate) fn helm(&self, arguments: &[&str]) -> Outcome {
        self.enter("control", &setup::go::helm()?, arguments)
    }

    /// Imports an image into every node.
    pub(crate) fn load(&self, archive: &Path) -> Outcome {
        self.script("load.sh", [archive.to_string_lossy().as_ref()])
    }

    /// Runs a program in the network of `role`, as the cluster's administrator.
    fn enter(&self, role: &str, program: &Path, arguments: &[&str]) -> Outcome {
        let mut command = self.inside(role, program)?;
        command.current_dir(env::current_dir().unwrap_or_else(|_| process::root())).args(arguments);
        process::run(&format!("running {}", program.display()), &mut command, "see its output above")
    }

    /// Returns the command of a program in the network of `role`, run as the cluster's administrator.
    pub(crate) fn inside(&self, role: &str, program: &Path) -> Outcome<Command> {
        let namespace = PathBuf::from(format!("/run/netns/{}-{role}", self.name));
        // The namespace alone may belong to a cluster of the same name that another checkout made.
        if !namespace.exists() || !self.folder.join("env").exists() {
            let step = format!("entering cluster {}", self.name);
            return Err(Failure::new(step, "it is not up", "cargo xtask cluster up"));
        }
        let mut command = process::command("nsenter");
        command.arg(format!("--net={}", namespace.display())).arg(program);
        command.env("KUBECONFIG", self.folder.join("pki/admin.kubeconfig"));
        Ok(command)
    }
}

/// What a test level needs around it; removed when dropped.
pub(crate) struct Surroundings {
    /// Environment variables for the tests.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// The cluster that was made for them.
    pub(crate) cluster: Option<Cluster>,
}

impl Surroundings {
    /// Prepares what a level needs besides the built binary.
    pub(crate) fn of(needs: Needs) -> Outcome<Self> {
        let mut surroundings = Self { variables: Vec::new(), cluster: None };
        let mut tell = |name, path: PathBuf| surroundings.variables.push((name, path.into()));
        if needs == Needs::Lab && setup::go::missing().is_none() {
            tell("VESTIBULE_ECH", setup::go::ech()?);
        }
        if needs < Needs::Control {
            return Ok(surroundings);
        }
        for (name, path) in api_server()? {
            tell(name, path);
        }
        tell("VESTIBULE_HELM", setup::go::helm()?);
        if needs == Needs::Control {
            tell("VESTIBULE_PROMTOOL", setup::tools::promtool()?);
            if let Some(release) = setup::previous::release()? {
                tell("VESTIBULE_PREVIOUS", release);
            }
        }
        if needs == Needs::Witness {
            tell("VESTIBULE_METALLB", setup::go::metallb()?);
        }
        if needs == Needs::Cluster {
            remove_stale()?;
            let cluster = Cluster::named(&format!("test-{}", std::process::id()));
            tell("VESTIBULE_CLUSTER_FOLDER", cluster.folder.clone());
            tell("VESTIBULE_IMAGE", image::run()?);
            // Stored before it is up, so that a cluster that failed to start completely is removed, too.
            let begun = Instant::now();
            surroundings.cluster.insert(cluster).up()?;
            println!("cluster: up in {:.1} s", begun.elapsed().as_secs_f64());
        }
        Ok(surroundings)
    }
}

/// Builds an API server, and returns the variables by which it and the definitions it needs are found. Needs Go.
pub(crate) fn api_server() -> Outcome<[(&'static str, PathBuf); 2]> {
    Ok([
        ("VESTIBULE_API_SERVER", setup::go::api_server()?),
        ("VESTIBULE_GATEWAY_CRDS", setup::go::gateway_crds()?),
    ])
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        if let Some(Err(mut failure)) = self.cluster.as_ref().map(Cluster::down) {
            failure.tell();
        }
    }
}

/// Removes the clusters of test runs that were killed.
fn remove_stale() -> Outcome {
    let entries = fs::read_dir(process::target().join("cluster")).into_iter().flatten().flatten();
    for name in entries.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let pid = name.strip_prefix("test-").and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            Cluster::named(&name).down()?;
        }
    }
    Ok(())
}
