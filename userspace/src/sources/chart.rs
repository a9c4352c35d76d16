//! The chart's file, from its path.

use super::file;
use crate::config::{self, ChartFile};
use crate::model::Problem;
use std::path::Path;

/// Reads and checks the file that the chart gives to agents and controller. A file with any error is refused as a
/// whole; the problems then have lines.
pub fn load(path: &Path) -> Result<ChartFile, Vec<Problem>> {
    let text = file::read(path).map_err(|error| vec![file::unreadable(&error)])?;
    let (chart, mut problems) = config::parse_chart(&text);
    if problems.iter().any(Problem::is_error) {
        config::locate(&text, &mut problems);
        problems.sort_by_key(|problem| problem.line);
        return Err(problems);
    }
    Ok(chart)
}
