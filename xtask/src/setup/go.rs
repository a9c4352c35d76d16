//! Programs from Go modules: Kubernetes, helm, the Gateway API conformance suite. They are built here, in
//! versions pinned by the modules under `tests/`, and kept outside the tree as in [`super::tools`].

use super::tools::folder;
use crate::failure::{Failure, Outcome};
use crate::process;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const KUBERNETES: &str = "tests/cluster/hyper";
const HELM: &str = "tests/cluster/helm";
const METALLB: &str = "tests/cluster/metallb";
const IMAGES: &str = "tests/cluster/images";
const CONFORMANCE: &str = "tests/conformance";
const ECH: &str = "tests/path/ech";

/// The file that determines the suite's version. Changes of our tests do not affect it.
const SUITE_PIN: &str = "tests/conformance/go.mod";

/// Names by which the one binary is called.
const PROGRAMS: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
];

/// Names of our images; those of the suite are read from its manifests.
const PAUSE: &str = "vestibule.test/pause:1";
const ECHO: &str = "vestibule.test/echo:1";

/// Returns why Go programs cannot be built here; `None`: they can. A Go that is too old counts as missing.
pub(crate) fn missing() -> Option<String> {
    let answer = process::answer(go(CONFORMANCE).args(["list", "-m"]));
    answer.is_none().then(|| format!("no Go toolchain that {CONFORMANCE}/go.mod accepts"))
}

/// Builds everything below.
pub(crate) fn everything() -> Outcome {
    for program in [ech, kubernetes, helm, images, gateway_crds, conformance] {
        program()?;
    }
    Ok(())
}

/// Server and client for TLS with an encrypted ClientHello, which no library of ours supports on both sides.
pub(crate) fn ech() -> Outcome<PathBuf> {
    let program = folder("ech")?.join("bin/ech");
    let step = "building server and client of encrypted ClientHellos";
    once(step, &program, &[ECH], "half a minute", || {
        build(step, ECH, ".", &program, &["build", "-ldflags", "-s -w"])
    })?;
    Ok(program)
}

/// The folder of `etcd`, `kube-apiserver`, `kubectl` and the programs of a node.
pub(crate) fn kubernetes() -> Outcome<PathBuf> {
    let version = pinned(KUBERNETES, "k8s.io/kubernetes")?;
    let prefix = folder(&format!("kubernetes-{version}"))?;
    let bin = prefix.join("bin");
    let step = format!("building Kubernetes {version}");
    once(&step, &prefix.join("kubernetes"), &[KUBERNETES], "five to ten minutes", || {
        let output = bin.join("hyper");
        let flags = stamp(&version);
        build(&step, KUBERNETES, ".", &output, &["build", "-ldflags", &flags])?;
        for program in PROGRAMS {
            link(&step, &bin.join(program))?;
        }
        Ok(())
    })?;
    Ok(bin)
}

/// The folder of `etcd`, `kube-apiserver` and `kubectl`: `KUBEBUILDER_ASSETS` if it is set.
pub(crate) fn api_server() -> Outcome<PathBuf> {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty()) else {
        return kubernetes();
    };
    let assets = PathBuf::from(assets);
    for program in ["etcd", "kube-apiserver", "kubectl"] {
        if !assets.join(program).is_file() {
            let reason = format!("KUBEBUILDER_ASSETS is {}, which has no {program}", assets.display());
            return Err(Failure::new("finding an API server", reason, "correct the variable, or unset it"));
        }
    }
    Ok(assets)
}

/// The program `helm`.
pub(crate) fn helm() -> Outcome<PathBuf> {
    let version = pinned(HELM, "helm.sh/helm/v3")?;
    let prefix = folder(&format!("helm-{version}"))?;
    let program = prefix.join("bin/helm");
    let step = format!("building helm {version}");
    once(&step, &prefix.join("helm"), &[HELM], "one to three minutes", || {
        build(&step, HELM, "helm.sh/helm/v3/cmd/helm", &program, &["build", "-ldflags", "-s -w"])
    })?;
    Ok(program)
}

/// The controller of MetalLB, which only tests that are run by name compare ours with.
pub(crate) fn metallb() -> Outcome<PathBuf> {
    let module = "go.universe.tf/metallb";
    let version = pinned(METALLB, module)?;
    let program = folder(&format!("metallb-{version}"))?.join("bin/controller");
    let step = format!("building the controller of MetalLB {version}");
    once(&step, &program, &[METALLB], "one to three minutes", || {
        build(&step, METALLB, &format!("{module}/controller"), &program, &["build", "-ldflags", "-s -w"])
    })?;
    Ok(program)
}

/// A folder of image archives for every node: the pause process, and the suite's echo server under all its names.
pub(crate) fn images() -> Outcome<PathBuf> {
    let prefix = gateway_api()?;
    let folder = prefix.join("images");
    let step = "making the cluster's images";
    let parts = [IMAGES, "tests/cluster/images/pause", "tests/cluster/images/archive", SUITE_PIN];
    once(step, &prefix.join("images"), &parts, "some seconds", || {
        let tools = prefix.join("bin");
        build(step, IMAGES, "./pause", &tools.join("pause"), &["build", "-ldflags", "-s -w"])?;
        build(step, IMAGES, "./archive", &tools.join("archive"), &["build"])?;
        let echo = format!("{SUITE}/echo-basic");
        build(step, CONFORMANCE, &echo, &tools.join("echo-basic"), &["build", "-ldflags", "-s -w"])?;
        let manifests = names_in_manifests(step)?;
        let named = |part: &str| manifests.iter().filter(|name| name.contains(part)).cloned().collect();
        let mut echoes: Vec<String> = named("echo-basic");
        echoes.push(ECHO.to_owned());
        // The suite's DNS server is for UDP routes only: a process that stays alive is enough.
        let mut pauses: Vec<String> = named("coredns");
        pauses.push(PAUSE.to_owned());
        fs::create_dir_all(&folder).map_err(|error| unwritable(step, &folder, &error))?;
        for (program, names) in [("pause", pauses), ("echo-basic", echoes)] {
            let mut archive = process::command(tools.join("archive"));
            archive.arg(folder.join(format!("{program}.tar"))).arg(tools.join(program)).args(names);
            process::run(step, &mut archive, "see its output above")?;
        }
        Ok(())
    })?;
    Ok(folder)
}

/// The folder with the CustomResourceDefinitions of exactly the suite's version, standard channel.
pub(crate) fn gateway_crds() -> Outcome<PathBuf> {
    let prefix = gateway_api()?;
    let folder = prefix.join("crds");
    let step = "copying the Gateway API's definitions";
    once(step, &folder, &[SUITE_PIN], "a moment", || {
        let source = module(step, "sigs.k8s.io/gateway-api")?.join("config/crd/standard");
        let copy = || -> std::io::Result<()> {
            fs::create_dir_all(&folder)?;
            for entry in fs::read_dir(&source)? {
                let entry = entry?;
                // Not `fs::copy`: the module cache is read-only, and the copy would be, too.
                fs::write(folder.join(entry.file_name()), fs::read(entry.path())?)?;
            }
            Ok(())
        };
        copy().map_err(|error| unwritable(step, &folder, &error))
    })?;
    Ok(folder)
}

/// The conformance tests, the suite's and ours, as one test binary.
pub(crate) fn conformance() -> Outcome<PathBuf> {
    let program = gateway_api()?.join("bin/conformance.test");
    let step = "building the conformance tests";
    once(step, &program, &[CONFORMANCE], "one to four minutes", || {
        build(step, CONFORMANCE, ".", &program, &["test", "-c"])
    })?;
    Ok(program)
}

const SUITE: &str = "sigs.k8s.io/gateway-api/conformance";

fn gateway_api() -> Outcome<PathBuf> {
    folder(&format!("gateway-api-{}", pinned(CONFORMANCE, SUITE)?))
}

/// Version of `module` in one of our `go.mod` files, without the `v`.
fn pinned(ours: &str, module: &str) -> Outcome<String> {
    let file = process::root().join(ours).join("go.mod");
    let text = fs::read_to_string(&file).unwrap_or_default();
    version_in(&text, module).ok_or_else(|| {
        let reason = format!("{} does not name {module}", file.display());
        Failure::new("finding a version", reason, "restore the file from git")
    })
}

fn version_in(text: &str, module: &str) -> Option<String> {
    let mut lines = text.lines().map(|line| line.trim().trim_start_matches("require "));
    let version = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(" v"))?;
    version.split(' ').next().map(str::to_owned)
}

/// Linker flags with the version that `kubectl version`, the nodes and the API server report.
fn stamp(version: &str) -> String {
    let mut flags = "-s -w".to_owned();
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags += &format!(
            " -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} \
             -X {package}.gitTreeState=clean -X {package}.gitCommit={:040}",
            0
        );
    }
    flags
}

/// Runs `make` unless it already ran with the same sources, which are recorded in `result.sources`.
fn once(step: &str, result: &Path, sources: &[&str], time: &str, make: impl FnOnce() -> Outcome) -> Outcome {
    let now: String = sources.iter().map(|folder| read(&process::root().join(folder))).collect();
    let name = result.file_name().unwrap_or_default().to_string_lossy();
    let remembered = result.with_file_name(format!("{name}.sources"));
    if fs::read_to_string(&remembered).is_ok_and(|then| then == now) {
        return Ok(());
    }
    println!("setup: {step}: {time}");
    make()?;
    fs::write(&remembered, now).map_err(|error| unwritable(step, &remembered, &error))
}

/// Text of a Go package and its pins, or of one file.
fn read(path: &Path) -> String {
    if path.is_file() {
        return fs::read_to_string(path).unwrap_or_default();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let ours = |path: &&PathBuf| {
        ["go", "mod", "sum"].iter().any(|extension| path.extension().is_some_and(|found| found == *extension))
    };
    files.iter().filter(ours).filter_map(|path| fs::read_to_string(path).ok()).collect()
}

/// `go` in a folder of the tree, without a C compiler: the programs are static, and all share one build cache.
fn go(ours: &str) -> Command {
    let mut command = process::command("go");
    command.current_dir(process::root().join(ours)).env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    command
}

/// Builds next to the old program and renames over it, because that one may be running.
fn build(step: &str, ours: &str, package: &str, output: &Path, arguments: &[&str]) -> Outcome {
    let beside = output.with_extension("new");
    let mut command = go(ours);
    command.args(arguments).arg("-buildvcs=false").arg("-o").arg(&beside).arg(package);
    process::run(step, &mut command, "check the network and the free space (10 GB), then again")?;
    fs::rename(&beside, output).map_err(|error| unwritable(step, output, &error))
}

fn link(step: &str, path: &Path) -> Outcome {
    let made = match symlink("hyper", path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    made.map_err(|error| unwritable(step, path, &error))
}

/// Where a module that `tests/conformance` uses is in the module cache.
fn module(step: &str, name: &str) -> Outcome<PathBuf> {
    process::run(step, go(CONFORMANCE).args(["mod", "download", name]), "check the network, then again")?;
    let folder = process::answer(go(CONFORMANCE).args(["list", "-m", "-f", "{{.Dir}}", name]));
    folder.filter(|folder| !folder.is_empty()).map(PathBuf::from).ok_or_else(|| {
        Failure::new(
            step,
            format!("go does not report where {name} is"),
            "go mod verify, in tests/conformance",
        )
    })
}

/// Every image that the suite's manifests start.
fn names_in_manifests(step: &str) -> Outcome<Vec<String>> {
    let suite = module(step, SUITE)?;
    let mut names: Vec<String> = Vec::new();
    for folder in ["base", "tests", "tests/mesh"] {
        for entry in fs::read_dir(suite.join(folder)).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let images =
                text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image: "));
            names.extend(images.map(|name| name.trim_matches('"').to_owned()));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn unwritable(step: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(step, format!("{}: {error}", path.display()), "check the folder's owner and the free space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_modules() {
        let block = "require (\n\tk8s.io/kubectl v0.35.4\n\tk8s.io/kubernetes v1.35.4 // indirect\n)\n";
        assert_eq!(version_in(block, "k8s.io/kubernetes").as_deref(), Some("1.35.4"));
        assert_eq!(version_in("require a.b/c v1.6.3\n", "a.b/c").as_deref(), Some("1.6.3"));
        assert_eq!(version_in(block, "k8s.io/kube"), None);
        for (ours, module) in
            [(KUBERNETES, "k8s.io/kubernetes"), (HELM, "helm.sh/helm/v3"), (CONFORMANCE, SUITE)]
        {
            assert!(pinned(ours, module).is_ok(), "{ours}");
        }
    }
}
