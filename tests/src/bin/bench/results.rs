//! Stores results: in `target/bench` and, on request, in `tests/bench` and README.md.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::rounds::Effort;
use crate::table::{Row, chart, markdown, summary};

const CHART: &str = "tests/bench/chart.svg";
const RESULTS: &str = "tests/bench/RESULTS.md";
const README: &str = "README.md";
/// The lines around what `--write` replaces in a document.
const MARKS: [&str; 2] = ["<!-- cargo xtask bench -->", "<!-- end of cargo xtask bench -->"];

/// Writes table and chart below the target folder.
pub(crate) fn store(rows: &[Row], effort: &Effort) -> Result<()> {
    let folder = target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    fs::write(folder.join("table.md"), table(rows, effort))?;
    fs::write(folder.join("chart.svg"), chart(rows))?;
    println!("table and chart: {}", folder.display());
    Ok(())
}

/// Writes the whole table to RESULTS.md, the chart beside it, and a summary to README.md.
pub(crate) fn publish(rows: &[Row], effort: &Effort) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tree")?;
    let chart_path = root.join(CHART);
    fs::write(&chart_path, chart(rows)).with_context(|| format!("writing {}", chart_path.display()))?;
    replace(&root.join(RESULTS), &format!("\n{}\n", table(rows, effort)))?;
    let short = format!("\n![Work per CPU-second]({CHART})\n\n{}\n", summary(rows));
    replace(&root.join(README), &short)
}

/// Replaces what is between the marks of a document.
fn replace(path: &Path, section: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let new =
        between(&text, section).with_context(|| format!("{} has no marks for the table", path.display()))?;
    fs::write(path, new).with_context(|| format!("writing {}", path.display()))
}

fn table(rows: &[Row], effort: &Effort) -> String {
    format!(
        "Medians of {} rounds with their 95 % intervals; {}.\n\n{}",
        effort.rounds,
        machine(),
        markdown(rows)
    )
}

/// Returns the text with `section` between the marks.
fn between(text: &str, section: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}{section}{}{after}", MARKS[0], MARKS[1]))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let text = format!("a\n{}old{}\nb\n", MARKS[0], MARKS[1]);
        let new = between(&text, "\nnew\n").unwrap();
        assert_eq!(new, format!("a\n{}\nnew\n{}\nb\n", MARKS[0], MARKS[1]));
        assert_eq!(between("no marks", ""), None);
    }
}
