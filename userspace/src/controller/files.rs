//! Content of the configuration files: the chart's settings, and the listeners and routes of a static file,
//! which add to those of the cluster. Agents are given the same files, so that both compile the same configuration.

use crate::model::{Facts, Problem};
use crate::sources::file;
use crate::sources::watch_file::FileWatch;
use std::path::PathBuf;
use tracing::{info, warn};

/// Most problems of a file that are logged.
const LOGGED: usize = 20;

/// The files as last read.
pub(super) struct Files {
    /// Content of the chart's file.
    chart: Facts,
    /// Path of the static file.
    path: Option<PathBuf>,
    watch: FileWatch,
}

impl Files {
    /// Reads the static file, if there is one. At start, a refused file is an error.
    pub(super) fn read(chart: Facts, path: Option<PathBuf>) -> Result<(Self, Facts), Vec<Problem>> {
        let watch = FileWatch::new(path.clone());
        let this = Self { chart, path, watch };
        let facts = this.facts()?;
        Ok((this, facts))
    }

    /// Returns the files' content if the static file has changed. If its new version is refused, the previous
    /// content stays in effect.
    pub(super) fn changed(&mut self) -> Option<Facts> {
        let path = self.path.clone()?;
        if !self.watch.look() {
            return None;
        }
        let name = path.display().to_string();
        match self.facts() {
            Ok(facts) => {
                info!(file = name, "read again");
                Some(facts)
            }
            Err(problems) => {
                problems.iter().take(LOGGED).for_each(|problem| warn!("{}", problem.in_file(&name)));
                warn!(file = name, "is refused; what it said before stays");
                None
            }
        }
    }

    fn facts(&self) -> Result<Facts, Vec<Problem>> {
        let mut facts = self.chart.clone();
        if let Some(path) = &self.path {
            let more = file::facts(path)?;
            facts.listeners.extend(more.listeners);
            facts.routes.extend(more.routes);
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_and_a_bad_one_changes_nothing() {
        let path = std::env::temp_dir().join(format!("vestibule-files-{}.yaml", std::process::id()));
        let text = |listener: &str| {
            format!(
                "apiVersion: vestibule.dev/v1alpha1\nkind: StaticConfig\nlisteners:\n  - {{name: {listener}, \
                 addresses: [192.0.2.1], port: 443, protocol: TLS}}\n"
            )
        };
        std::fs::write(&path, text("a")).unwrap();
        let (mut files, facts) = Files::read(Facts::default(), Some(path.clone())).unwrap();
        assert_eq!(&*facts.listeners[0].name, "a");
        assert_eq!(files.changed(), None);
        std::fs::write(&path, "listeners: 7").unwrap();
        assert_eq!(files.changed(), None);
        std::fs::write(&path, text("another")).unwrap();
        assert_eq!(&*files.changed().unwrap().listeners[0].name, "another");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.changed(), None);
        assert!(Files::read(Facts::default(), Some(path)).is_err());
    }
}
