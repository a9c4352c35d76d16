//! Prints tables, and JSON with one object per line.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::Format;
use crate::model::Problem;

/// A JSON object on one line.
pub(super) struct Json(String);

impl Json {
    pub(super) fn of(value: &impl Serialize) -> Result<Self> {
        Ok(Self(serde_json::to_string(value)?))
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        Self(value.to_string())
    }
}

/// One row: cells for a table, and a JSON object.
pub(super) struct Row {
    pub cells: Vec<String>,
    pub json: Json,
}

/// Prints one line.
pub(super) fn line(text: &impl Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{text}").map_err(Into::into)
}

/// Prints rows under their headings. Columns whose heading starts with `>` are right-aligned.
pub(super) fn rows(headings: &[&str], rows: &[Row], format: Format) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match format {
        Format::Json => {
            for row in rows {
                writeln!(out, "{}", row.json.0)?;
            }
        }
        Format::Table => out.write_all(table(headings, rows).as_bytes())?,
    }
    out.flush().map_err(Into::into)
}

fn table(headings: &[&str], rows: &[Row]) -> String {
    let titles: Vec<String> = headings.iter().map(|h| h.trim_start_matches('>').to_uppercase()).collect();
    let mut widths: Vec<usize> = titles.iter().map(|title| title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for cells in std::iter::once(&titles).chain(rows.iter().map(|row| &row.cells)) {
        let padded = cells.iter().zip(headings).zip(&widths).map(|((cell, heading), width)| {
            if heading.starts_with('>') { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Prints the problems of a file, and that it had no effect.
pub(super) fn refused(file: &Path, problems: &[Problem], effect: &str) -> ExitCode {
    let file = file.display().to_string();
    for problem in problems {
        eprintln!("{}", problem.in_file(&file));
    }
    eprintln!("error: {file} is refused; {effect}");
    ExitCode::FAILURE
}

/// Returns whether the reader of our output has closed the pipe (`vestibule flows | head`).
pub(super) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |a: &str, b: &str| Row { cells: vec![a.into(), b.into()], json: Json(String::new()) };
        let text = table(&["route", ">flows"], &[row("a", "12345678"), row("tenant-b", "1")]);
        assert_eq!(text, "ROUTE        FLOWS\na         12345678\ntenant-b         1\n");
    }
}
