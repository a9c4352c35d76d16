//! kubectl as a client, used as people type it and as the project's documentation shows it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::places;
use crate::net::unique;

/// The intervals at which an object is polled: an eighth of the time that has passed, within these limits. Each poll
/// is a process, which costs a tenth of a second of one core; where many tests wait, that is what slows all others.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];

/// kubectl with the rights of one kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    netns: Option<PathBuf>,
}

impl Kubectl {
    pub(super) fn new(program: PathBuf, kubeconfig: PathBuf, netns: Option<PathBuf>) -> Self {
        Self { program, kubeconfig, netns }
    }

    /// Same kubectl, with the rights of another kubeconfig.
    pub fn with(&self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_path_buf(), ..self.clone() }
    }

    /// The file with the API server's address and the client's credentials.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Builds a kubectl command, ready for arguments.
    pub fn command(&self) -> Command {
        let mut command = places::command(self.netns.as_deref(), &self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        // By default kubectl keeps what a server serves in HOME, by address and port; a later server of
        // another test may have the same.
        command.arg("--cache-dir").arg(self.kubeconfig.with_extension("cache"));
        // Otherwise a sixth of its time is spent on garbage, just before it ends.
        command.env("GOGC", "400");
        command
    }

    /// Runs kubectl and returns what it printed; if it fails, the error contains its messages.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.feed(arguments, "")
    }

    /// Same as [`Self::run`], with text on its standard input.
    pub fn feed(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", arguments.join(" "), told.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs kubectl and returns status and output, for commands that may fail.
    pub fn output(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting kubectl")?;
        let mut stdin = child.stdin.take().context("stdin of kubectl is piped")?;
        // It may exit without reading; its error output says why.
        if let Err(error) = stdin.write_all(input.as_bytes())
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            return Err(error).context("writing to kubectl");
        }
        drop(stdin);
        child.wait_with_output().context("waiting for kubectl")
    }

    /// Creates or changes the objects of a manifest (YAML or JSON).
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.feed(&["apply", "--server-side", "--force-conflicts", "-f", "-"], manifest).map(drop)
    }

    /// Creates or changes the objects of a file, or of all files of a folder.
    pub fn apply_files(&self, path: &Path) -> Result<()> {
        let path = path.to_string_lossy();
        self.run(&["apply", "--server-side", "--force-conflicts", "-f", &path]).map(drop)
    }

    /// Deletes those objects of a manifest that exist, and waits until they are gone.
    pub fn delete(&self, manifest: &str) -> Result<()> {
        self.feed(&["delete", "--ignore-not-found", "-f", "-"], manifest).map(drop)
    }

    /// Returns what `kubectl get ARGUMENTS -o json` prints: an object, or a list with `items`.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).context("kubectl printed no JSON")
    }

    /// Polls `kubectl get ARGUMENTS` until the result is as wanted. After the time limit, the error contains
    /// the last result.
    pub fn wait_for(
        &self,
        what: &str,
        arguments: &[&str],
        patience: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let seen = self.get(arguments);
            match seen {
                Ok(seen) if wanted(&seen) => return Ok(seen),
                _ if begun.elapsed() < patience => {
                    std::thread::sleep((begun.elapsed() / 8).clamp(PAUSES[0], PAUSES[1]));
                }
                Ok(seen) => bail!("not within {patience:?}: {what}; last seen: {seen:#}"),
                Err(error) => return Err(error).context(format!("not within {patience:?}: {what}")),
            }
        }
    }

    /// Waits until every CustomResourceDefinition is established.
    pub fn wait_for_definitions(&self) -> Result<()> {
        self.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]).map(drop)
    }

    /// Creates a namespace for one test, `<role>-<pid>-<n>`.
    pub fn namespace(&self, role: &str) -> Result<OwnNamespace> {
        let name = format!("{role}-{}-{}", std::process::id(), unique());
        self.run(&["create", "namespace", &name])?;
        Ok(OwnNamespace { kubectl: self.clone(), name })
    }

    /// Same kubectl, with the rights of a ServiceAccount, which must exist. Its kubeconfig is stored next to
    /// ours.
    pub fn of_service_account(&self, namespace: &str, name: &str) -> Result<Self> {
        let token = self.run(&["create", "token", "--duration=24h", "-n", namespace, name])?;
        let ours: Value = serde_json::from_str(&self.run(&["config", "view", "-o", "json"])?)?;
        let cluster = &ours["clusters"][0]["cluster"];
        let (server, authority) = (&cluster["server"], &cluster["certificate-authority"]);
        let (Some(server), Some(authority)) = (server.as_str(), authority.as_str()) else {
            bail!("{} has no server, or no authority's file", self.kubeconfig.display());
        };
        let file = self.kubeconfig.with_file_name(format!("{namespace}.{name}.kubeconfig"));
        let text = places::kubeconfig(server, Path::new(authority), token.trim());
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        Ok(self.with(&file))
    }
}

/// A Kubernetes namespace for one test. Dropping it deletes it with all its objects, which takes some
/// seconds.
#[derive(Debug)]
pub struct OwnNamespace {
    kubectl: Kubectl,
    name: String,
}

impl OwnNamespace {
    /// Its name in Kubernetes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates or changes objects in it, from a manifest that names no namespace.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let arguments = ["-n", &self.name, "apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.kubectl.feed(&arguments, manifest).map(drop)
    }

    /// Runs `kubectl ARGUMENTS` in it and returns what it printed.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl.run(&[&["-n", &self.name], arguments].concat())
    }

    /// Returns the result of `kubectl get ARGUMENTS` in it.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        self.kubectl.get(&[&["-n", &self.name], arguments].concat())
    }

    /// Polls `kubectl get ARGUMENTS` in it until the result is as wanted.
    pub fn wait_for(
        &self,
        what: &str,
        arguments: &[&str],
        patience: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        self.kubectl.wait_for(what, &[&["-n", &self.name], arguments].concat(), patience, wanted)
    }
}

impl Drop for OwnNamespace {
    fn drop(&mut self) {
        if let Err(error) = self.kubectl.run(&["delete", "namespace", &self.name, "--wait=false"]) {
            eprintln!("{error:#}");
        }
    }
}
