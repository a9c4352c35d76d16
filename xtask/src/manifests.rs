//! Plain manifests, rendered from the chart.

use crate::failure::{Failure, Outcome};
use crate::{process, setup};
use std::fs;

const CHART: &str = "deploy/charts/vestibule";
const VALUES: &str = "deploy/manifests/values.yaml";

/// The rendered files, each with its options. `tests/control/chart.rs` renders the same and compares.
const FILES: &[(&str, &[&str])] = &[
    ("deploy/manifests/vestibule.yaml", &[]),
    (
        "deploy/manifests/gatewayclass.yaml",
        &[
            "--show-only=templates/gatewayclass.yaml",
            "--api-versions=gateway.networking.k8s.io/v1/GatewayClass",
        ],
    ),
];

/// Oldest Kubernetes version that the chart supports.
const KUBERNETES: &str = "--kube-version=1.31.0";

const STEP: &str = "rendering the manifests";

/// Renders the manifests.
pub(crate) fn run() -> Outcome {
    let helm = setup::go::helm()?;
    for (path, options) in FILES {
        let mut command = process::command(&helm);
        command.args(["template", "vestibule", CHART, "--namespace=vestibule-system", "--values", VALUES]);
        // Only helm runs hooks: applied, they would run at once.
        command.args([KUBERNETES, "--no-hooks"]).args(*options);
        let output = command.output().map_err(|error| process::not_run(STEP, &command, &error))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Failure::new(STEP, reason, "fix the chart"));
        }
        fs::write(process::root().join(path), output.stdout)
            .map_err(|error| Failure::new(STEP, format!("{path}: {error}"), "check the folder's owner"))?;
        println!("manifests: {path}");
    }
    Ok(())
}
