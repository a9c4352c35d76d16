//! The chart's file: followed, and with a copy of its last good version for a start with a bad one.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tracing::{error, info, warn};

use super::disk;
use super::facts::Sources;
use crate::config::ChartFile;
use crate::model::Problem;
use crate::outputs::{Pins, StartError, maps};
use crate::sources::chart::{self, Reader};

/// The name of the copy in the state folder.
const FILE: &str = "chart";
/// The first line of the copy. Any change of the format needs a new number.
const HEADING: &str = "vestibule chart file 1";
/// What is logged of a file that is refused.
const STAYS: &str = "the chart's file is refused; what it said before stays in effect";
/// The most problems logged at once.
const LOGGED: usize = 20;

/// The chart's file.
#[derive(Debug)]
pub(super) struct ChartSource {
    path: PathBuf,
    /// The folder with the copy.
    folder: PathBuf,
    /// The text in effect.
    text: String,
    /// What of it the pinned maps do not allow.
    sizes: Vec<Problem>,
    /// Why the file's present text is not in effect.
    refused: Vec<Problem>,
}

impl ChartSource {
    /// Reads the file; or, if it is refused, the copy of its last good version. Without one, the problems are returned.
    pub(super) fn start(path: &Path, folder: &Path) -> Result<(Self, ChartFile), Vec<Problem>> {
        let (path, folder) = (path.to_owned(), folder.to_owned());
        let mut this = Self { path, folder, text: String::new(), sizes: Vec::new(), refused: Vec::new() };
        let problems = match this.read() {
            Ok((text, chart)) => {
                this.accept(text);
                return Ok((this, chart));
            }
            Err(problems) => problems,
        };
        let Some(text) = this.copy() else { return Err(problems) };
        let Ok(chart) = chart::parse(&text, Reader::Agent) else { return Err(problems) };
        this.refuse(
            problems,
            "the chart's file is refused; the last good version that this node saved is used",
        );
        this.text = text;
        Ok((this, chart))
    }

    /// Returns the file's text and content.
    fn read(&self) -> Result<(String, ChartFile), Vec<Problem>> {
        let text = chart::read(&self.path)?;
        let chart = chart::parse(&text, Reader::Agent)?;
        Ok((text, chart))
    }

    fn copy(&self) -> Option<String> {
        let copy = disk::read(&self.folder.join(FILE), HEADING);
        copy.ok().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// Notes that a text is in effect, and saves a copy of it.
    fn accept(&mut self, text: String) {
        self.refused.clear();
        if let Err(error) = disk::write(&self.folder.join(FILE), HEADING, text.as_bytes()) {
            warn!(%error, "the chart's file is not kept for the next start");
        }
        self.text = text;
    }

    /// Notes that the file is refused. Logs why, once.
    fn refuse(&mut self, problems: Vec<Problem>, outcome: &str) {
        if self.refused == problems {
            return;
        }
        let path = self.path.display().to_string();
        problems.iter().take(LOGGED).for_each(|problem| error!("{}", problem.in_file(&path)));
        error!("{outcome}");
        self.refused = problems;
    }

    /// Gives the maps' fixed sizes priority over what a new text says.
    pub(super) fn keep_sizes(&mut self, pins: &Pins, chart: &mut ChartFile) -> Result<(), StartError> {
        self.sizes = maps::keep_sizes(pins, &mut chart.facts.settings)?;
        self.sizes.iter().for_each(|problem| warn!("{problem}"));
        Ok(())
    }

    /// The beginning of the SHA-256 of the text in effect.
    pub(super) fn hash(&self) -> String {
        let hash = Sha256::digest(self.text.as_bytes());
        hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// What is wrong with the file.
    pub(super) fn problems(&self) -> Vec<Problem> {
        [&*self.sizes, &*self.refused].concat()
    }

    /// Reads the file again. If it is refused, what it said before stays in effect. Returns whether something else is in effect.
    pub(super) fn follow(&mut self, pins: &Pins, sources: &mut Sources) -> bool {
        let is_new = match self.read() {
            Ok((text, _)) if text == self.text => {
                self.refused.clear();
                false
            }
            Ok((text, chart)) => self.put(text, chart, pins, sources),
            Err(problems) => {
                self.refuse(problems, STAYS);
                false
            }
        };
        sources.note_chart(self.hash(), self.problems());
        is_new
    }

    fn put(&mut self, text: String, mut chart: ChartFile, pins: &Pins, sources: &mut Sources) -> bool {
        if let Err(error) = self.keep_sizes(pins, &mut chart) {
            error!(%error, "the sizes of the pinned maps cannot be read: {STAYS}");
            return false;
        }
        if !sources.set_chart(chart) {
            let problem =
                Problem::error("", "waits for the static file, which is refused", "correct that one");
            self.refuse(vec![problem], STAYS);
            return false;
        }
        self.accept(text);
        info!("the chart's file was read again");
        true
    }
}
