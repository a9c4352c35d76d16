//! The chart's file, from its path.

use super::file;
use crate::config::{self, ChartFile};
use crate::model::Problem;
use crate::origins::{self, Origin};
use std::path::Path;

/// Who reads the chart's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The controller: everything in it must be right.
    Controller,
    /// An agent, which assigns no address and reads no origin: what is wrong with them is for the controller to say.
    Agent,
}

/// Reads and checks the file that the chart gives to agents and controller. A file with any error is refused as a
/// whole; the problems then have lines.
pub fn load(path: &Path, reader: Reader) -> Result<ChartFile, Vec<Problem>> {
    parse(&read(path)?, reader)
}

/// Reads the file's text.
pub fn read(path: &Path) -> Result<String, Vec<Problem>> {
    file::read(path).map_err(|error| vec![file::unreadable(&error)])
}

/// Checks the file's text.
pub fn parse(text: &str, reader: Reader) -> Result<ChartFile, Vec<Problem>> {
    let (chart, mut problems) = config::parse_chart(text);
    if reader == Reader::Agent {
        let sections = || origins::all().map(Origin::section).chain(["addresses"]);
        let section = |problem: &Problem| problem.field.split_once('.').map_or("", |(of, _)| of).to_owned();
        problems.retain(|problem| !sections().any(|of| of == section(problem)));
    }
    if problems.iter().any(Problem::is_error) {
        config::locate(text, &mut problems);
        problems.sort_by_key(|problem| problem.line);
        return Err(problems);
    }
    Ok(chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or a range written wrong would stop all nodes, and not only the controller.
    #[test]
    fn agents_do_not_judge_addresses() {
        let text = "addresses: {ranges: [127.0.0.1]}\n";
        let problems = parse(text, Reader::Controller).unwrap_err();
        assert_eq!(problems[0].field, "addresses.ranges[0]");
        assert!(parse(text, Reader::Agent).is_ok());
        let text = "ingress: {listeners: [none]}\n";
        assert_eq!(parse(text, Reader::Controller).unwrap_err()[0].field, "ingress.listeners[0]");
        assert!(parse(text, Reader::Agent).is_ok());
        for text in ["addresses: {ranges: [127.0.0.1]}\ndevices: [a/b]\n", "addresses: [\n", "adresses: {}\n"]
        {
            assert!(parse(text, Reader::Agent).is_err(), "{text}");
        }
    }
}
