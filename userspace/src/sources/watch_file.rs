//! Notices that a file changed: the one watch of `vestibule run`, the agent and the controller.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How often it looks. It polls instead of using inotify, because a file may be on any file system, and may be a link
/// that is led elsewhere, as those of a ConfigMap are.
const PERIOD: Duration = Duration::from_millis(250);

/// A file, as it was when it was last looked at.
#[derive(Debug)]
pub struct FileWatch {
    path: Option<PathBuf>,
    seen: Option<Stamp>,
    next: Instant,
}

/// What distinguishes one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
    /// Which file it is on its file system.
    inode: u64,
}

impl FileWatch {
    /// Of the file at this path; none: nothing ever changes. Made before the file is read, so that no change falls in
    /// between.
    pub fn new(path: Option<PathBuf>) -> Self {
        let mut this = Self { path, seen: None, next: Instant::now() + PERIOD };
        this.mark();
        this
    }

    /// The file is about to be read for another reason: what it is now is no news.
    pub fn mark(&mut self) {
        self.seen = self.path.as_deref().and_then(stamp);
    }

    /// Whether the file is another than when this was last asked. One that is away is being replaced: it is news when it
    /// is there again, and only if it is not what it was.
    pub fn look(&mut self) -> bool {
        let now = self.path.as_deref().and_then(stamp);
        let is_news = now.is_some() && now != self.seen;
        self.seen = now.or(self.seen);
        is_news
    }

    /// Comes back when the file is another. May be dropped at any time: nothing is lost.
    pub async fn changed(&mut self) {
        if self.path.is_none() {
            return std::future::pending().await;
        }
        loop {
            sleep_until(self.next).await;
            self.next = Instant::now() + PERIOD;
            if self.look() {
                return;
            }
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    let changed = (metadata.mtime(), metadata.mtime_nsec());
    Some(Stamp { length: metadata.len(), changed, inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, FileTimes};
    use std::time::SystemTime;

    /// A path that is empty, and stays the test's own.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("vestibule-watch-{name}-{}", std::process::id())))
        }

        /// Writes at a known time: two writes in one tick of the file system's clock look alike otherwise.
        fn write(&self, path: &Path, text: &str, second: u64) {
            fs::write(path, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_times(FileTimes::new().set_modified(time))
                .unwrap();
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn length_time_and_inode_tell_states_apart() {
        let place = Place::new("states");
        let mut watch = FileWatch::new(Some(place.0.clone()));
        assert!(!watch.look(), "no file yet");
        place.write(&place.0, "one", 1);
        assert!(watch.look() && !watch.look());
        place.write(&place.0, "three", 1);
        assert!(watch.look(), "another length");
        place.write(&place.0, "seven", 2);
        assert!(watch.look(), "another time");
        let beside = place.0.with_extension("new");
        place.write(&beside, "eight", 2);
        fs::rename(&beside, &place.0).unwrap();
        assert!(watch.look() && !watch.look(), "another file of the same length and time");
    }

    #[test]
    fn a_file_that_is_away_for_a_moment_is_news_only_when_it_returns_as_another() {
        let place = Place::new("away");
        place.write(&place.0, "one", 1);
        let mut watch = FileWatch::new(Some(place.0.clone()));
        let aside = place.0.with_extension("aside");
        fs::rename(&place.0, &aside).unwrap();
        assert!(!watch.look());
        fs::rename(&aside, &place.0).unwrap();
        assert!(!watch.look(), "it is what it was");
        fs::remove_file(&place.0).unwrap();
        assert!(!watch.look());
        place.write(&place.0, "another", 1);
        assert!(watch.look());
    }

    #[test]
    fn what_is_marked_is_no_news() {
        let place = Place::new("marked");
        place.write(&place.0, "one", 1);
        let mut watch = FileWatch::new(Some(place.0.clone()));
        place.write(&place.0, "three", 2);
        watch.mark();
        assert!(!watch.look());
    }

    #[tokio::test]
    async fn a_change_ends_the_waiting_even_if_it_was_given_up_before() {
        let place = Place::new("waiting");
        place.write(&place.0, "one", 1);
        let mut watch = FileWatch::new(Some(place.0.clone()));
        let short = Duration::from_millis(10);
        assert!(tokio::time::timeout(short, watch.changed()).await.is_err());
        place.write(&place.0, "three", 2);
        assert!(tokio::time::timeout(short, watch.changed()).await.is_err(), "it does not look all the time");
        tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.unwrap();
        let mut none = FileWatch::new(None);
        assert!(tokio::time::timeout(2 * PERIOD, none.changed()).await.is_err());
    }
}
