//! The tables between the marks of RESULTS.md: one for each workload, with the build that was measured, so that a workload can be measured
//! again by itself.

use anyhow::{Context, Result, bail};

use crate::stats::Median;
use crate::table::Row;

/// The lines around what `--write` replaces in a document.
const MARKS: [&str; 2] = ["<!-- cargo xtask bench -->", "<!-- end of cargo xtask bench -->"];
/// What a workload's heading begins with; its name follows, and a backtick.
const HEADING: &str = "### `";

/// Returns what is before, between and after the marks, the marks themselves with what is outside.
pub(crate) fn between(text: &str) -> Option<[&str; 3]> {
    let start = text.find(MARKS[0])? + MARKS[0].len();
    let end = start + text[start..].find(MARKS[1])?;
    Some([&text[..start], &text[start..end], &text[end..]])
}

/// The tables of a document, in its order.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The name of a workload, and what follows its heading.
    all: Vec<(String, String)>,
}

impl Tables {
    /// Reads the tables of a document. Returns nothing if it has no marks.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let [_, section, _] = between(text)?;
        let parts = section.split(HEADING).skip(1).filter_map(|part| part.split_once("`\n"));
        Some(Self { all: parts.map(|(name, body)| (name.to_owned(), body.trim().to_owned())).collect() })
    }

    /// Replaces the table of a workload, or adds it where `order` has it.
    pub(crate) fn replace(&mut self, name: &str, body: &str, order: &[&str]) {
        self.all.retain(|(known, _)| known != name);
        self.all.push((name.to_owned(), body.trim().to_owned()));
        let rank = |name: &str| order.iter().position(|known| *known == name);
        self.all.sort_by_key(|(name, _)| rank(name).unwrap_or(order.len()));
    }

    /// The section between the marks.
    pub(crate) fn text(&self) -> String {
        let parts = self.all.iter().map(|(name, body)| format!("\n{HEADING}{name}`\n\n{body}\n"));
        parts.chain(["\n".to_owned()]).collect()
    }

    /// Returns the rows of all tables, with what a summary and the chart need. Fails if a line of a table is none that was written here.
    pub(crate) fn rows(&self) -> Result<Vec<Row>> {
        let lines = self.all.iter().flat_map(|(name, body)| body.lines().map(move |line| (name, line)));
        lines
            .filter(|(_, line)| line.starts_with("| "))
            .filter(|(_, line)| !line.starts_with("| workload |") && !line.starts_with("| --- |"))
            .map(|(name, line)| row(line).with_context(|| format!("the table of {name}, line {line:?}")))
            .collect()
    }
}

/// Reads a line of a table, but for what it was compared with.
fn row(line: &str) -> Result<Row> {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [workload, system, figure, value, ..] = cells[..] else { bail!("it has too few columns") };
    Ok(Row {
        workload: workload.to_owned(),
        system: system.to_owned(),
        figure: figure.to_owned(),
        value: (!value.is_empty()).then(|| median(value)).transpose()?,
        target: None,
        failures: 0,
        note: String::new(),
    })
}

/// Reads a median with its interval: `0.9 [0.8, 1.0] of 40`; earlier tables do not say of how many figures. Or `0.9, one figure`.
fn median(text: &str) -> Result<Median> {
    if let Some(value) = text.strip_suffix(", one figure") {
        return Ok(Median::one(value.parse()?));
    }
    let (value, rest) = text.split_once(" [").context("the value has no interval")?;
    let (interval, figures) = rest.split_once(']').context("the interval has no end")?;
    let (low, high) = interval.split_once(", ").context("the interval has one end")?;
    let figures = match figures.strip_prefix(" of ") {
        Some(figures) => figures.parse()?,
        None if figures.is_empty() => 0,
        None => bail!("what follows the interval is no number of figures"),
    };
    Ok(Median { value: value.parse()?, low: low.parse()?, high: high.parse()?, figures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Target, chart, markdown, summary};

    const ORDER: [&str; 3] = ["connect", "ask", "flows"];

    fn measured(workload: &str, system: &str, value: f64) -> Row {
        Row {
            workload: workload.to_owned(),
            system: system.to_owned(),
            figure: "9 per CPU-s".to_owned(),
            value: Some(Median { value, low: value - 0.25, high: value + 0.25, figures: 40 }),
            target: Some(Target::AtLeast(0.5)),
            failures: 0,
            note: "a note".to_owned(),
        }
    }

    fn document(section: &str) -> String {
        format!("a\n{}{section}{}\nb\n", MARKS[0], MARKS[1])
    }

    #[test]
    fn only_what_is_between_the_marks_is_a_section() {
        let text = document("\nold\n");
        let [before, section, after] = between(&text).unwrap();
        assert_eq!(section, "\nold\n");
        assert_eq!(format!("{before}{section}{after}"), text);
        assert!(between("no marks").is_none() && between(MARKS[0]).is_none());
        assert!(Tables::read("no marks").is_none());
    }

    #[test]
    fn one_workload_is_replaced_and_the_others_stay_in_order() {
        let mut tables = Tables::read(&document("\n")).unwrap();
        for name in ["flows", "connect"] {
            let body = format!("Build 1.\n\n{}", markdown(&[measured(name, "vestibule", 0.5)]));
            tables.replace(name, &body, &ORDER);
        }
        let first = document(&tables.text());
        tables = Tables::read(&first).unwrap();
        assert_eq!(document(&tables.text()), first, "what is read is written as it was");
        tables.replace("ask", "Build 2.", &ORDER);
        tables.replace("flows", "Build 3.", &ORDER);
        let text = tables.text();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
        assert!(at("`connect`") < at("Build 1.") && at("Build 1.") < at("`ask`"));
        assert!(at("Build 2.") < at("`flows`") && at("`flows`") < at("Build 3."));
        assert_eq!(text.matches("Build 1.").count(), 1);
    }

    #[test]
    fn summary_and_chart_of_what_was_read_are_those_of_what_was_measured() {
        let systems = ["direct", "vestibule", "nft", "haproxy", "nginx"];
        let rows: Vec<Row> = systems.iter().map(|system| measured("connect", system, 0.75)).collect();
        let mut tables = Tables::read(&document("\n")).unwrap();
        tables.replace("connect", &format!("Build 1.\n\n{}", markdown(&rows)), &ORDER);
        let read = tables.rows().unwrap();
        assert_eq!((summary(&read), chart(&read)), (summary(&rows), chart(&rows)));
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        for line in
            ["| one | two |", "| a | b | c | 0.5 |", "| a | b | c | 0.5 [0.4] |", "| a | b | c | x [y, z] |"]
        {
            let mut tables = Tables::read(&document("\n")).unwrap();
            tables.replace("ask", line, &ORDER);
            let refused = format!("{:#}", tables.rows().unwrap_err());
            assert!(refused.contains("the table of ask") && refused.contains(line.trim()), "{refused}");
        }
        let mut tables = Tables::read(&document("\n")).unwrap();
        tables.replace("ask", "| a | b | c |  |  |  |  |", &ORDER);
        assert_eq!(tables.rows().unwrap()[0].value, None);
    }

    #[test]
    fn a_value_says_of_how_many_figures_it_is() {
        let of = |figures| Median { figures, ..Median::of(&[0.25, 0.5, 0.75]) };
        for (median_of, text) in
            [(of(7), "0.500 [0.250, 0.750] of 7"), (Median::one(0.25), "0.250, one figure")]
        {
            let line = markdown(&[Row { value: Some(median_of), ..measured("ask", "vestibule", 0.5) }]);
            assert!(line.contains(&format!("| {text} |")), "{line}");
            assert_eq!(median(text).unwrap(), median_of);
        }
        assert_eq!(median("0.5 [0.25, 0.75]").unwrap(), of(0), "an earlier table");
        assert!(
            median("0.5 [0.25, 0.75] of many").is_err() && median("0.5 [0.25, 0.75], one figure").is_err()
        );
    }
}
