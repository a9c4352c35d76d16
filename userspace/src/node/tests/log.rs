use std::io;
use std::sync::{Arc, Mutex};

use tracing::Subscriber;

/// The lines of a test's log.
#[derive(Clone, Default)]
pub(in crate::node) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// What writes them.
    pub(in crate::node) fn subscriber(&self) -> impl Subscriber + Send + Sync + 'static {
        let lines = self.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone()).finish()
    }

    /// Returns and forgets what was written.
    pub(in crate::node) fn text(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::Error::other("a test failed"))?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
