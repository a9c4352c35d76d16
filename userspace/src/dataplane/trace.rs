//! The reading end of `vestibule trace`: its filter, and the records that the programs log.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aya::programs::SchedClassifier;
use aya_log::EbpfLogger;
use common::maps::name;
use common::maps::trace::{TraceCount, TraceFilter, TraceRecord};
use tokio::io::unix::AsyncFd;
use zerocopy::FromBytes;

use super::load::{self, LoadError};
use super::pin::{PinError, Pins, program};
use super::read;
use super::table::{Table, TableError};

/// A filter that is not renewed ends after this time, so that a killed command leaves nothing behind.
const LIFETIME: Duration = Duration::from_secs(2);

/// Between two renewals of the filter.
pub const RENEW_EVERY: Duration = Duration::from_millis(500);

/// For packets that are between being counted and being logged when a trace ends.
const SETTLE: Duration = Duration::from_millis(20);

/// Why packets cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Nothing to trace, or another version's maps.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Another trace runs, or the pin folder cannot be used.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The filter cannot be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The ring of records cannot be read.
    #[error("reading map {map}: {0}", map = name::AYA_LOGS)]
    Ring(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl TraceError {
    fn ring(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Ring(Box::new(error))
    }
}

/// A running trace. Dropping it stops the programs from logging.
pub struct Trace {
    filter: TraceFilter,
    filters: Table<u32, TraceFilter>,
    counts: Table<u32, TraceCount>,
    ring: AsyncFd<EbpfLogger<Records>>,
    records: Records,
    /// Packets chosen before this trace started.
    first: u64,
    /// Records read.
    received: u64,
    /// One trace at a time.
    _lock: File,
}

impl Trace {
    /// Starts to log the packets that `filter` chooses; its `until_ns` is set here. To be called within a runtime.
    pub fn start(pins: &Pins, filter: TraceFilter) -> Result<Self, TraceError> {
        load::need_version(pins)?;
        let lock = pins.lock_trace()?;
        let filters = Table::open(pins.folder(), name::TRACE)?;
        let counts: Table<u32, TraceCount> = Table::open(pins.folder(), name::TRACE_COUNT)?;
        filters.put(&0, &TraceFilter::zeroed())?;
        let ingress = pins.programs().join(program::INGRESS);
        let id = SchedClassifier::from_pin(&ingress)
            .and_then(|program| program.info().map(|info| info.id()))
            .map_err(TraceError::ring)?;
        let records = Records::default();
        let mut log = EbpfLogger::init_from_id_with_logger(id, records.clone()).map_err(TraceError::ring)?;
        // What an earlier trace left unread.
        log.flush();
        records.take();
        let first = chosen(&counts)?;
        // SAFETY: the logger owns its descriptor, which is open and the same until the logger is dropped.
        let ring = unsafe { AsyncFd::register(log) }.map_err(TraceError::ring)?;
        let trace = Self { filter, filters, counts, ring, records, first, received: 0, _lock: lock };
        trace.renew()?;
        Ok(trace)
    }

    /// Keeps the programs logging for another two seconds.
    pub fn renew(&self) -> Result<(), TableError> {
        let until_ns = read::now_ns() + LIFETIME.as_nanos() as u64;
        self.filters.put(&0, &TraceFilter { until_ns, ..self.filter })
    }

    /// Waits for records; gives up without losing any when it is dropped.
    pub async fn next(&mut self) -> io::Result<Vec<TraceRecord>> {
        loop {
            let records = self.read();
            if !records.is_empty() {
                return Ok(records);
            }
            self.ring.readable_mut().await?.clear_ready();
        }
    }

    /// Stops logging and returns the last records.
    pub fn finish(&mut self) -> Result<Vec<TraceRecord>, TableError> {
        self.filters.put(&0, &TraceFilter::zeroed())?;
        std::thread::sleep(SETTLE);
        Ok(self.read())
    }

    /// Packets chosen since the start that were not logged: more than the limit of a second, or no room in the ring.
    /// Exact after [`Trace::finish`]; before, records that are still in the ring count as lost.
    pub fn lost(&self) -> Result<u64, TableError> {
        Ok(chosen(&self.counts)?.wrapping_sub(self.first).saturating_sub(self.received))
    }

    fn read(&mut self) -> Vec<TraceRecord> {
        self.ring.get_mut().flush();
        let records = self.records.take();
        self.received += records.len() as u64;
        records
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // It ends by itself where this fails.
        let _ = self.filters.put(&0, &TraceFilter::zeroed());
    }
}

fn chosen(counts: &Table<u32, TraceCount>) -> Result<u64, TableError> {
    Ok(counts.look_up(&0)?.map_or(0, |count| count.chosen))
}

/// Collects what the programs log.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<TraceRecord>>>);

impl Records {
    fn take(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl log::Log for Records {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, line: &log::Record<'_>) {
        // Another text is not ours; the ABI version rules it out.
        if let Some(record) = record(&line.args().to_string()) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }

    fn flush(&self) {}
}

/// The record in a line of the log: its bytes in hexadecimal digits.
fn record(line: &str) -> Option<TraceRecord> {
    let mut bytes = [0; size_of::<TraceRecord>()];
    let digits = line.as_bytes();
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    TraceRecord::read_from_bytes(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_line_of_the_log_is_a_record() {
        let sent = TraceRecord { number: 7, seq: 0x0102_0304, reason: 255, ..TraceRecord::zeroed() };
        let line: String = sent.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(record(&line), Some(sent));
        assert_eq!(record(&line[2..]), None);
        assert_eq!(record(&line.replacen('0', "g", 1)), None);
        assert_eq!(record(""), None);
    }
}
