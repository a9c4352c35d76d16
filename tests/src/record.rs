//! Rows that long runs append to committed tables of their results.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// Returns today's date (UTC).
pub fn today() -> String {
    date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Returns the date, from the seconds since 1970 (civil_from_days, Howard Hinnant).
pub fn date(unix_secs: u64) -> String {
    let days = (unix_secs / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// Returns the commit that is measured, as `cargo xtask` names it.
pub fn commit() -> String {
    std::env::var("VESTIBULE_COMMIT").unwrap_or_else(|_| "-".into())
}

/// Returns a text that neither ends a cell nor a row.
pub fn in_cell(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

/// Reads a table under `tests`.
pub fn read(table: &str) -> Result<(PathBuf, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(table);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok((path, text))
}

/// Appends a row to a table under `tests`.
pub fn append(table: &str, row: &str) -> Result<PathBuf> {
    let (path, text) = read(table)?;
    fs::write(&path, with_row(&text, row)).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Returns the text with one more row.
pub fn with_row(text: &str, row: &str) -> String {
    format!("{}\n{row}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_follows_the_last_one() {
        let text = with_row("# Loads\n\n| a | b |\n|---|---|\n\n", "| 1 | 2 |");
        assert_eq!(with_row(&text, "| 3 | 4 |"), "# Loads\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n");
        assert_eq!(in_cell("a | b\nc"), "a / b c");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (secs, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_795_564_800, "2026-11-25"),
            (1_735_689_599, "2024-12-31"),
        ] {
            assert_eq!(date(secs), expected);
        }
    }
}
