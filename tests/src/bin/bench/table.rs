//! Results as rows, printed, in Markdown, and as a chart.

use std::fmt::Write as _;

use crate::stats::Median;

/// What a row's value is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// The distance from 1, in either direction.
    Within(f64),
    /// The upper end of the interval is at least this: the figures do not show that the true value is less.
    ReachesUp(f64),
    /// The lower end of the interval is at most this: the figures do not show that the true value is more.
    ReachesDown(f64),
}

impl Target {
    fn is_met(self, median: Median) -> bool {
        match self {
            Self::AtLeast(least) => median.value >= least,
            Self::AtMost(most) => median.value <= most,
            Self::Within(part) => (median.value - 1.0).abs() <= part,
            Self::ReachesUp(least) => median.high >= least,
            Self::ReachesDown(most) => median.low <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
            Self::Within(part) => format!("1 +- {part}"),
            Self::ReachesUp(least) => format!("interval reaches {least}"),
            Self::ReachesDown(most) => format!("interval reaches down to {most}"),
        }
    }

    /// Returns the target against an old build, derived from this target, which is about `direct`. It is
    /// missed only if the whole interval is more than 2 % worse than 1.
    pub(crate) const fn against_old(self) -> Self {
        match self {
            Self::AtMost(_) | Self::ReachesDown(_) => Self::ReachesDown(1.02),
            Self::AtLeast(_) | Self::Within(_) | Self::ReachesUp(_) => Self::ReachesUp(0.98),
        }
    }
}

/// One figure of one system.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) system: String,
    /// The figure itself, with its unit.
    pub(crate) figure: String,
    /// The value that the target is about: usually the ratio to `direct` in the same round.
    pub(crate) value: Option<Median>,
    pub(crate) target: Option<Target>,
    /// Connections that failed, wrong bytes, wrong routes.
    pub(crate) failures: u64,
    /// What went wrong, and runs that other processes disturbed.
    pub(crate) note: String,
}

impl Row {
    fn verdict(&self) -> &'static str {
        match (self.target, self.value) {
            (Some(target), Some(median)) if target.is_met(median) && self.failures == 0 => "met",
            (Some(_), _) => "missed",
            (None, _) => "",
        }
    }

    fn cells(&self) -> [String; 7] {
        let value = self.value.map_or_else(String::new, written);
        [
            self.workload.clone(),
            self.system.clone(),
            self.figure.clone(),
            value,
            self.target.map_or_else(String::new, Target::text),
            self.verdict().to_owned(),
            self.note.clone(),
        ]
    }
}

/// Formats a median with its interval, and of how many figures it is. One figure has no interval.
fn written(median: Median) -> String {
    match median.figures {
        1 => format!("{}, one figure", short(median.value)),
        figures => {
            format!("{} [{}, {}] of {figures}", short(median.value), short(median.low), short(median.high))
        }
    }
}

/// Formats a value, with fewer decimals the larger it is.
fn short(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

const HEADS: [&str; 7] = ["workload", "system", "median", "value [95 %]", "target", "", "note"];

/// The system name of rows that compare a new build with an old one.
pub(crate) const NEW_TO_OLD: &str = "new/old";

/// Returns only the rows that compare a new build with an old one.
pub(crate) fn against(rows: &[Row]) -> Vec<Row> {
    rows.iter().filter(|row| row.system == NEW_TO_OLD).cloned().collect()
}

/// Formats rows in columns for a terminal.
pub(crate) fn plain(rows: &[Row]) -> String {
    let cells: Vec<[String; 7]> =
        std::iter::once(HEADS.map(str::to_owned)).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &cells {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(text, "{}", line.join("  ").trim_end()).expect("a string takes everything");
    }
    text
}

/// Formats rows as a Markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text = format!("| {} |\n|{}\n", HEADS.join(" | "), " --- |".repeat(7));
    for row in rows {
        writeln!(text, "| {} |", row.cells().join(" | ")).expect("a string takes everything");
    }
    text
}

/// Systems of the summary, in the order of its columns.
const SUMMARY: [&str; 4] = ["vestibule", "nft", "haproxy", "nginx"];

/// A Markdown table of the ratios to `direct`: a row for each workload that every system carries, without the workloads
/// limited to the wire's rate.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut text = format!(
        "| ratio to plain forwarding | {} |\n|{}\n",
        SUMMARY.join(" | "),
        " --- |".repeat(1 + SUMMARY.len())
    );
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    workloads.dedup();
    for workload in workloads.into_iter().filter(|workload| !workload.contains("wirecap")) {
        let ratio = |system: &&str| {
            let row = rows.iter().find(|row| row.workload == workload && row.system == **system)?;
            Some(short(row.value?.value))
        };
        let ratios: Option<Vec<String>> = SUMMARY.iter().map(ratio).collect();
        if let Some(ratios) = ratios {
            writeln!(text, "| {workload} | {} |", ratios.join(" | ")).expect("a string takes everything");
        }
    }
    text
}

/// Draws bars with their intervals, grouped by workload, for all rows with a figure per CPU-second of workloads that `direct` carries too,
/// except those of `direct`.
pub(crate) fn chart(rows: &[Row]) -> String {
    const LEFT: f64 = 330.0;
    const SCALE: f64 = 380.0;
    let direct: Vec<&str> =
        rows.iter().filter(|row| row.system == "direct").map(|row| row.workload.as_str()).collect();
    let is_drawn = |row: &&Row| {
        row.system != "direct" && row.figure.contains("CPU-s") && direct.contains(&row.workload.as_str())
    };
    let ratios: Vec<&Row> = rows.iter().filter(is_drawn).collect();
    let height = 40 + ratios.len() * 18;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"800\" height=\"{height}\" fill=\"white\"/>\n<text x=\"10\" y=\"18\" \
         font-size=\"13\">Work per CPU-second, as a part of plain forwarding (1.0); lines: 95 % intervals</text>\n"
    );
    let mut before = "";
    for (place, row) in ratios.iter().enumerate() {
        let Some(median) = row.value else { continue };
        let y = 32 + place * 18;
        let fill = if row.system.starts_with("vestibule") { "#2a6fbb" } else { "#b8bec6" };
        let workload = if row.workload == before { "" } else { row.workload.as_str() };
        before = &row.workload;
        let (width, low, high) =
            (median.value * SCALE, LEFT + median.low * SCALE, LEFT + median.high * SCALE);
        let middle = y as f64 + 7.5;
        writeln!(
            svg,
            "<text x=\"10\" y=\"{base}\">{workload}</text><text x=\"{label}\" y=\"{base}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" fill=\"{fill}\"/>\
             <path d=\"M{low:.1} {middle}H{high:.1}\" stroke=\"#222\"/>\
             <text x=\"{end:.1}\" y=\"{base}\">{:.2}</text>",
            row.system,
            median.value,
            base = y + 11,
            label = LEFT - 6.0,
            end = high.max(LEFT + width) + 5.0,
        )
        .expect("a string takes everything");
    }
    let one = LEFT + SCALE;
    writeln!(svg, "<path d=\"M{one} 26V{height}\" stroke=\"#888\" stroke-dasharray=\"3 3\"/>\n</svg>")
        .expect("a string takes everything");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, value: f64, target: Option<Target>, failures: u64) -> Row {
        let value = Some(Median { value, low: value - 0.01, high: value + 0.01, figures: 40 });
        let (workload, figure) = ("connect".into(), "11,000 per CPU-s".into());
        Row { workload, system: system.into(), figure, value, target, failures, note: String::new() }
    }

    #[test]
    fn a_target_is_met_only_without_failures() {
        let least = Some(Target::AtLeast(0.88));
        assert_eq!(row("vestibule", 0.9, least, 0).verdict(), "met");
        assert_eq!(row("vestibule", 0.9, least, 1).verdict(), "missed");
        assert_eq!(row("vestibule", 0.87, least, 0).verdict(), "missed");
        assert_eq!(row("vestibule", 0.94, Some(Target::Within(0.05)), 0).verdict(), "missed");
        assert_eq!(row("vestibule", 1.2, Some(Target::AtMost(1.15)), 0).verdict(), "missed");
        assert_eq!(row("nft", 0.5, None, 0).verdict(), "");
    }

    #[test]
    fn an_interval_that_reaches_the_target_meets_it() {
        let verdict = |low: f64, high: f64, target| {
            let value = Some(Median { value: f64::midpoint(low, high), low, high, figures: 40 });
            Row { value, ..row(NEW_TO_OLD, 1.0, Some(target), 0) }.verdict()
        };
        let (work, time) = (Target::AtLeast(0.88).against_old(), Target::AtMost(1.15).against_old());
        assert_eq!((work, time), (Target::ReachesUp(0.98), Target::ReachesDown(1.02)));
        assert_eq!(
            [(0.95, 0.98), (0.9, 1.2), (1.1, 1.2)].map(|(low, high)| verdict(low, high, work)),
            ["met"; 3]
        );
        assert_eq!(verdict(0.95, 0.979, work), "missed");
        assert_eq!(
            [(1.02, 1.1), (0.9, 1.2), (0.8, 0.9)].map(|(low, high)| verdict(low, high, time)),
            ["met"; 3]
        );
        assert_eq!(verdict(1.021, 1.1, time), "missed");
        // Without a figure no target is met.
        assert_eq!(verdict(f64::NAN, f64::NAN, work), "missed");
        assert_eq!(verdict(f64::NAN, f64::NAN, time), "missed");
    }

    #[test]
    fn only_rows_against_the_old_build_stand_in_their_table() {
        let rows = [row("direct", 1.0, None, 0), row(NEW_TO_OLD, 0.99, Some(Target::ReachesUp(0.98)), 0)];
        let chosen = against(&rows);
        assert_eq!(chosen.iter().map(|row| row.system.as_str()).collect::<Vec<_>>(), [NEW_TO_OLD]);
        assert!(plain(&chosen).contains("interval reaches 0.98"));
    }

    #[test]
    fn the_summary_has_what_every_system_carries() {
        let of =
            |workload: &str, system: &str| Row { workload: workload.into(), ..row(system, 0.5, None, 0) };
        let systems = ["direct", "vestibule", "nft", "haproxy", "nginx"];
        let mut rows = systems.map(|system| of("ask", system)).to_vec();
        rows.extend(systems.map(|system| of("bulk, wirecap-pin", system)));
        rows.push(of("memory", "vestibule"));
        let lines: Vec<String> = summary(&rows).lines().map(str::to_owned).collect();
        assert_eq!(lines[2..], ["| ask | 0.500 | 0.500 | 0.500 | 0.500 |"]);
    }

    #[test]
    fn tables_and_the_chart_hold_every_row() {
        let rows = [row("direct", 1.0, None, 0), row("vestibule", 0.91, Some(Target::AtLeast(0.88)), 0)];
        assert!(markdown(&rows).contains(
            "| connect | vestibule | 11,000 per CPU-s | 0.910 [0.900, 0.920] of 40 | >= 0.88 | met |"
        ));
        assert!(plain(&rows).lines().count() == 3);
        let other = Row { workload: "among many".to_owned(), ..row("vestibule, few", 1.0, None, 0) };
        let chart = chart(&[rows.to_vec(), vec![other]].concat());
        assert!(!chart.contains("among many"), "no part of plain forwarding: {chart}");
        assert!(chart.contains(">vestibule</text>") && !chart.contains(">direct</text>"), "{chart}");
        assert_eq!(chart.matches("<rect").count(), 2);
    }
}
