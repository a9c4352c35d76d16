//! Where results go: `target/bench`, and on demand README.md with the chart in `tests/bench`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::rounds::Effort;
use crate::table::{Row, chart, markdown};

const CHART: &str = "tests/bench/chart.svg";
/// What stands around the table in README.md.
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

/// Puts the table into README.md and the chart into the tree.
pub(crate) fn publish(rows: &[Row], effort: &Effort) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tree")?;
    let place = root.join(CHART);
    fs::create_dir_all(place.parent().context("the chart's folder")?)?;
    fs::write(&place, chart(rows)).with_context(|| format!("writing {}", place.display()))?;
    let readme = root.join("README.md");
    let text = fs::read_to_string(&readme)?;
    let section = format!("\n![Work per CPU-second]({CHART})\n\n{}\n", table(rows, effort));
    let new = between(&text, &section).context("README.md has no marks for the table")?;
    fs::write(&readme, new).context("writing README.md")
}

fn table(rows: &[Row], effort: &Effort) -> String {
    format!(
        "Medians of {} rounds with their 95 % intervals; {}.\n\n{}",
        effort.rounds,
        machine(),
        markdown(rows)
    )
}

/// The text with `section` between the marks.
fn between(text: &str, section: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}{section}{}{after}", MARKS[0], MARKS[1]))
}

/// Kernel, processor, number of CPUs.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, name)| name.trim());
    // Without what its builder added: that says nothing of the kernel to others.
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
