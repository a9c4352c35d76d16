//! Content of the configuration files: the chart's settings, and the listeners and routes of a static file,
//! which add to those of the cluster. Agents are given the same files, and compile what is in them with the Claims.

use crate::config::ChartFile;
use crate::model::cluster::Policy;
use crate::model::{Facts, Problem};
use crate::sources::chart::{self, Reader};
use crate::sources::file;
use crate::sources::watch_file::FileWatch;
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// Most problems of a file that are logged.
const LOGGED: usize = 20;

/// The files as last read.
pub(super) struct Files {
    chart: Watched,
    /// The static file, if there is one.
    more: Option<Watched>,
    content: Content,
    /// Whether they were right at any time.
    is_known: bool,
}

/// What the files say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Settings, listeners and routes.
    pub(super) facts: Facts,
    /// What Gateways and Services may use.
    pub(super) policy: Policy,
}

/// A file that is followed.
struct Watched {
    path: PathBuf,
    watch: FileWatch,
    /// Why its present version is not in effect.
    refused: Option<String>,
}

/// The problems of a file.
type Refused = (PathBuf, Vec<Problem>);

impl Files {
    /// Reads the files. If one is refused, nothing is known before it is right.
    pub(super) fn read(chart: PathBuf, more: Option<PathBuf>) -> Self {
        // Made before they are read, so that no change falls in between.
        let (chart, more) = (Watched::new(chart), more.map(Watched::new));
        let mut this = Self { chart, more, content: Content::default(), is_known: false };
        this.read_again();
        this
    }

    /// Whether they were right at any time.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// What they say, or said before one was refused; nothing, if none of it was right yet.
    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// Reads the files again if one has changed. Returns whether they say something else now. If one is refused, what all of
    /// them said before stays in effect.
    pub(super) fn changed(&mut self) -> bool {
        let looked = [Some(&mut self.chart), self.more.as_mut()]
            .map(|file| file.is_some_and(|file| file.watch.look()));
        looked != [false; 2] && self.read_again()
    }

    /// Returns whether they say something else now.
    fn read_again(&mut self) -> bool {
        let read = Content::read(&self.chart.path, self.more.as_ref().map(|more| &*more.path));
        for file in [Some(&mut self.chart), self.more.as_mut()].into_iter().flatten() {
            file.note(read.as_ref().err(), self.is_known);
        }
        match read {
            Ok(content) => {
                info!("the configuration files were read");
                let is_other = !self.is_known || content != self.content;
                (self.content, self.is_known) = (content, true);
                is_other
            }
            Err(_) => false,
        }
    }

    /// Which files are refused, by the name of their option, and why: what they said before is in effect.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&'static str, String)> {
        let files = [("config", Some(&self.chart)), ("file", self.more.as_ref())];
        files.into_iter().filter_map(|(name, file)| Some((name, file?.refused.clone()?)))
    }
}

impl Content {
    fn read(chart: &Path, more: Option<&Path>) -> Result<Self, Refused> {
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |problems| (path, problems)
        };
        let ChartFile { mut facts, policy, .. } =
            chart::load(chart, Reader::Controller).map_err(refused(chart))?;
        if let Some(path) = more {
            let more = file::facts(path).map_err(refused(path))?;
            facts.listeners.extend(more.listeners);
            facts.routes.extend(more.routes);
        }
        Ok(Self { facts, policy })
    }
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        Self { watch: FileWatch::new(Some(path.clone())), path, refused: None }
    }

    /// Notes whether it is refused, and says why once. `is_known`: it was right before.
    fn note(&mut self, refused: Option<&Refused>, is_known: bool) {
        let problems = refused.filter(|(path, _)| *path == self.path).map(|(_, problems)| problems);
        let Some(first) = problems.and_then(|problems| problems.first()) else {
            self.refused = None;
            return;
        };
        let name = self.path.display().to_string();
        self.refused = Some(first.in_file(&name).to_string());
        problems.into_iter().flatten().take(LOGGED).for_each(|problem| warn!("{}", problem.in_file(&name)));
        let what =
            if is_known { "what it said before stays" } else { "nothing is written before it is right" };
        warn!(file = name, "is refused; {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder of a test's own.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("vestibule-files-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn write(&self, file: &str, text: &str) -> PathBuf {
            let path = self.0.join(file);
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn text(listener: &str) -> String {
        format!(
            "apiVersion: vestibule.dev/v1alpha1\nkind: StaticConfig\nlisteners:\n  - {{name: {listener}, \
             addresses: [192.0.2.1], port: 443, protocol: TLS}}\n"
        )
    }

    #[test]
    fn a_changed_static_file_is_read_and_a_bad_one_changes_nothing() {
        let folder = Folder::new("static");
        let chart = folder.write("chart", "{}\n");
        let path = folder.write("static", &text("a"));
        let mut files = Files::read(chart.clone(), Some(path.clone()));
        let listener = |files: &Files| files.content().facts.listeners[0].name.to_string();
        assert_eq!(listener(&files), "a");
        assert!(!files.changed());
        folder.write("static", "listeners: 7");
        assert!(!files.changed());
        let refused: Vec<_> = files.refused().collect();
        assert!(matches!(&*refused, [("file", _)]), "{refused:?}");
        // The chart's change waits for the static file: both are one configuration.
        folder.write("chart", "addresses: {ranges: [192.0.2.0/24]}\n");
        assert!(!files.changed());
        folder.write("static", &text("another"));
        assert!(files.changed());
        assert_eq!((listener(&files).as_str(), files.content().policy.ranges.len()), ("another", 1));
        assert_eq!(files.refused().count(), 0);
        fs::remove_file(&path).unwrap();
        assert!(!files.changed());
        assert!(!Files::read(chart, Some(path)).is_known());
    }

    #[test]
    fn a_changed_chart_file_is_read_and_a_bad_one_changes_nothing() {
        let folder = Folder::new("chart");
        let path = folder.write("chart", "addresses: {ranges: [192.0.2.0/24]}\n");
        let mut files = Files::read(path.clone(), None);
        let first = files.content().clone();
        folder.write("chart", "addresses: {ranges: [192.0.2.0/2x]}\n");
        assert!(!files.changed());
        assert_eq!(files.content(), &first);
        let refused: Vec<_> = files.refused().collect();
        assert!(
            matches!(&*refused, [(_, why)] if why.contains("chart:1") && why.contains("192.0.2.0/2x")),
            "{refused:?}"
        );
        assert!(!files.changed(), "it is not read twice");
        folder.write("chart", "addresses: {ranges: [192.0.2.0/24, 198.51.100.0/24]}\n");
        assert!(files.changed());
        assert_eq!((files.content().policy.ranges.len(), files.refused().count()), (2, 0));
        folder.write("chart", "# the same\naddresses: {ranges: [192.0.2.0/24, 198.51.100.0/24]}\n");
        assert!(!files.changed(), "it says the same");
    }

    #[test]
    fn a_file_that_is_bad_at_start_is_read_once_it_is_right() {
        let folder = Folder::new("start");
        let path = folder.write("chart", "addresses: {tlsPorts: [0]}\n");
        let mut files = Files::read(path, None);
        assert!(!files.is_known() && files.content() == &Content::default());
        let refused: Vec<_> = files.refused().collect();
        let [("config", why)] = refused.as_slice() else { panic!("{refused:?}") };
        for part in ["chart:1: error: ", "addresses.tlsPorts[0]: is not a port", "write 1 to 65535"] {
            assert!(why.contains(part), "{why}");
        }
        // One that says nothing new is right, too.
        let right = folder.write("right", "{}\n");
        files.content = Content::read(&right, None).unwrap();
        folder.write("chart", "{}\n");
        assert!(files.changed() && files.is_known() && files.refused().count() == 0);
        assert!(!files.changed());
    }
}
