//! Stores results: in `target/bench` and, on request, in `tests/bench` and README.md.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::published::{Tables, between};
use crate::table::{Row, chart, markdown, summary};
use crate::workload::{self, Measured};

const CHART: &str = "tests/bench/chart.svg";
const RESULTS: &str = "tests/bench/RESULTS.md";
const README: &str = "README.md";

/// Writes table and chart below the target folder.
pub(crate) fn store(rows: &[Row]) -> Result<()> {
    let folder = target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    fs::write(folder.join("table.md"), table(rows))?;
    fs::write(folder.join("chart.svg"), chart(rows))?;
    println!("table and chart: {}", folder.display());
    Ok(())
}

/// Writes the tables of these workloads to RESULTS.md, and from all tables there the chart beside it and the summary in README.md.
pub(crate) fn publish(measured: &[Measured]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tree")?;
    let results = root.join(RESULTS);
    let text = fs::read_to_string(&results).with_context(|| format!("reading {RESULTS}"))?;
    let mut tables = Tables::read(&text).with_context(|| format!("{RESULTS} has no marks for tables"))?;
    for (name, rows) in measured {
        tables.replace(name, &format!("Build {}. {}", commit(), table(rows)), &workload::names());
    }
    let rows = tables.rows()?;
    replace(&results, &tables.text())?;
    let chart_path = root.join(CHART);
    fs::write(&chart_path, chart(&rows)).with_context(|| format!("writing {}", chart_path.display()))?;
    let short = format!("\n![Work per CPU-second]({CHART})\n\n{}\n", summary(&rows));
    replace(&root.join(README), &short)
}

/// The commit that was measured, as `cargo xtask bench` names it.
fn commit() -> String {
    std::env::var("VESTIBULE_COMMIT").unwrap_or_else(|_| "unknown".to_owned())
}

/// Replaces what is between the marks of a document.
fn replace(path: &Path, section: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let [before, _, after] =
        between(&text).with_context(|| format!("{} has no marks for the table", path.display()))?;
    fs::write(path, format!("{before}{section}{after}"))
        .with_context(|| format!("writing {}", path.display()))
}

fn table(rows: &[Row]) -> String {
    format!(
        "Medians with their 95 % intervals, and of how many figures each is; {}.\n\n{}",
        machine(),
        markdown(rows)
    )
}

/// Describes the machine: kernel, processor, number of CPUs.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, name)| name.trim());
    // Without the builder's suffix, which means nothing to other readers.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    format!("Linux {kernel}, {} CPUs of {model}, all of the rig on them", crate::cpu::cpus())
}

/// The target folder this program was built into.
fn target() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), Path::to_owned)
}
