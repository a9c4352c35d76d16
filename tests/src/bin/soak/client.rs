//! Clients: each makes one connection after the other, and knows what each must get.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use load::content::{Pattern, digest};
use tests::addresses::vip;
use tests::dice::Dice;
use tests::net::Namespace;

use crate::book::{Book, Connection};
use crate::course::Course;
use crate::network;
use crate::plan::{Aim, End, Stop, plan};
use crate::server::{ANSWER_BYTES, Answer};
use crate::socket::{self, Broken, Got, abort, is_reset, is_timeout};
use crate::tenants::CLOSED_PORT;

/// The most bytes of the upload that are written together with the end of the hello.
const EAGER_BYTES: u32 = 16_000;
/// The longest pause between two connections of a client.
const PAUSE_MS: u64 = 60;
/// Bits of a connection's number that count a client's connections; the client's number is above them.
const COUNT_BITS: u32 = 40;

/// Why a connection is not what its client expected.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    /// Reset or silent: a change of the tenant may explain it.
    lost: bool,
}

fn failure(what: impl Into<String>) -> Failure {
    Failure { what: what.into(), lost: false }
}

fn error(doing: &str, error: &io::Error) -> Failure {
    Failure { what: format!("{doing}: {error}"), lost: is_reset(error) || is_timeout(error) }
}

fn broken(doing: &str, broken: Broken) -> Failure {
    match broken {
        Broken::Error(at, failed) => error(&format!("{doing}, after {at} bytes"), &failed),
        Broken::Early(at) => failure(format!("{doing}: ended after {at} bytes")),
        Broken::Altered(at) => failure(format!("{doing}: other bytes than were sent, before byte {at}")),
    }
}

/// Makes connections until the soak is over. Clients beyond those of the course are patient: they make connections that take
/// long.
pub(crate) fn run(book: &Book, namespaces: &[Namespace; 2], course: &Course, client: u64) {
    let pattern = Pattern::new();
    let (seed, patient) = (course.seed, client >= course.clients);
    let mut dice = Dice::new(course.seed_of_changes(), client << COUNT_BITS | 1 << (COUNT_BITS - 1));
    for count in course.from.. {
        while book.paused.load(Ordering::Relaxed) && !book.is_over() {
            sleep(Duration::from_millis(50));
        }
        if book.is_over() {
            return;
        }
        book.active.fetch_add(1, Ordering::Relaxed);
        book.reached.fetch_max(count + 1, Ordering::Relaxed);
        once(book, namespaces, &pattern, seed, client << COUNT_BITS | count, patient);
        book.active.fetch_sub(1, Ordering::Relaxed);
        sleep(Duration::from_millis(dice.below(PAUSE_MS)));
    }
}

/// Makes the connection with this number.
fn once(book: &Book, namespaces: &[Namespace; 2], pattern: &Pattern, seed: u64, number: u64, patient: bool) {
    let (plan, hello) = plan(seed, number, patient);
    let connection = book.begin(plan, digest(&hello));
    let visited = visit(&connection, &namespaces[connection.plan.net], &hello, pattern);
    let explained = visited.as_ref().is_err_and(|failure| failure.lost && book.explains(&connection));
    if let Err(failure) = visited
        && !explained
    {
        book.fault(format!("client: {}", failure.what), Some(&connection));
    }
    book.end(&connection, explained);
}

fn visit(
    connection: &Connection,
    namespace: &Namespace,
    hello: &[u8],
    pattern: &Pattern,
) -> Result<(), Failure> {
    let plan = &connection.plan;
    let from = network::client(plan.family, plan.net, plan.host);
    let to = match plan.aim {
        Aim::ClosedPort => SocketAddr::new(vip(plan.family), CLOSED_PORT),
        _ => plan.tenant.address(plan.family),
    };
    namespace.enter();
    let socket = socket::bound(from).map_err(|error| failure(format!("opening a socket: {error:#}")))?;
    let connected = socket::connect(socket, to);
    if plan.aim == Aim::ClosedPort {
        return match connected {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            other => Err(failure(format!("a port without listener: {other:?}"))),
        };
    }
    let mut stream = connected.map_err(|failed| error("connecting", &failed))?;
    if let Ok(local) = stream.local_addr() {
        connection.connected(local);
    }
    match plan.aim {
        Aim::Served(end) => served(connection, stream, hello, pattern, end),
        Aim::Refused(_) => {
            // The RST may be here before the last byte is written.
            match greet(&mut stream, connection, hello, &[]) {
                // The kernel reports a RST once.
                Err(failed) if is_reset(&failed) => Ok(()),
                Err(failed) => Err(error("writing the hello", &failed)),
                Ok(()) => refused(&mut stream),
            }
        }
        Aim::Unfinished(stop) => {
            let some = 1 + plan.upload as usize % (hello.len() - 1);
            stream
                .write_all(&hello[..some])
                .map_err(|failed| error("writing a part of the hello", &failed))?;
            give_up(stream, stop, plan.idle_ms.max(1), plan.net == 0)
        }
        Aim::Empty(stop) => give_up(stream, stop, plan.idle_ms, plan.net == 0),
        Aim::ClosedPort => Ok(()),
    }
}

/// Ends a connection that has no complete hello: a closed or silent one is reset.
fn give_up(mut stream: TcpStream, stop: Stop, pause_ms: u64, lossy: bool) -> Result<(), Failure> {
    match stop {
        Stop::Abort => {
            sleep(Duration::from_millis(pause_ms % 500));
            abort(stream);
            Ok(())
        }
        Stop::Close => {
            stream.shutdown(Shutdown::Write).map_err(|failed| error("closing", &failed))?;
            refused(&mut stream)
        }
        Stop::Wait => {
            if !lossy {
                // Only the daemon's RST ends it, at the time limit.
                socket::without_probes(&stream).map_err(|failed| error("no keep-alive probes", &failed))?;
            }
            refused(&mut stream)
        }
    }
}

/// Waits for the RST.
fn refused(stream: &mut TcpStream) -> Result<(), Failure> {
    match socket::read(stream, &mut [0; 64]) {
        Got::Error(failed) if is_reset(&failed) => Ok(()),
        other => Err(failure(format!("refused by RST? {other:?}"))),
    }
}

/// Writes the hello in its parts, and `more` with the last one.
fn greet(stream: &mut TcpStream, connection: &Connection, hello: &[u8], more: &[u8]) -> io::Result<()> {
    let mut from = 0;
    for (end, pause_us) in &connection.plan.cuts {
        if *pause_us > 0 {
            sleep(Duration::from_micros(*pause_us));
        }
        if *end == hello.len() && !more.is_empty() {
            stream.write_all(&[&hello[from..], more].concat())?;
        } else {
            stream.write_all(&hello[from..*end])?;
        }
        from = *end;
    }
    Ok(())
}

/// Hello, upload, answer, download, end.
fn served(
    connection: &Connection,
    mut stream: TcpStream,
    hello: &[u8],
    pattern: &Pattern,
    end: End,
) -> Result<(), Failure> {
    let plan = &connection.plan;
    let seed = plan.number as u32;
    let upload = if let End::AbortUp(at) = end { at } else { plan.upload };
    let eager = if plan.eager { upload.min(EAGER_BYTES) } else { 0 };
    greet(&mut stream, connection, hello, &pattern.from(seed, 0)[..eager as usize])
        .map_err(|failed| error("writing the hello", &failed))?;
    socket::send(&mut stream, pattern, seed, eager, upload).map_err(|failed| broken("uploading", failed))?;
    match end {
        End::AbortUp(_) => {
            abort(stream);
            return Ok(());
        }
        End::HalfClose => {
            stream.shutdown(Shutdown::Write).map_err(|failed| error("closing a half", &failed))?
        }
        _ => {}
    }
    let mut answer = [0; ANSWER_BYTES];
    match io::Read::read_exact(&mut stream, &mut answer) {
        // A RST discards what came before it.
        Err(failed) if is_reset(&failed) && matches!(end, End::BackendAborts(_)) => return Ok(()),
        read => read.map_err(|failed| error("reading the answer", &failed))?,
    }
    Answer::read(&answer).and_then(|answer| answer.check(connection)).map_err(failure)?;
    sleep(Duration::from_millis(plan.idle_ms));
    // The seed of the other direction is another one.
    let download = |stream: &mut TcpStream, until| {
        socket::receive(stream, pattern, !seed, 0, until).map_err(|failed| broken("downloading", failed))
    };
    match end {
        End::AbortUp(_) => return Ok(()),
        End::AbortDown(at) => {
            download(&mut stream, at)?;
            abort(stream);
            return Ok(());
        }
        End::Leave(at) => return download(&mut stream, at),
        End::BackendAborts(at) => return aborted(&mut stream, pattern, !seed, at),
        End::ClientCloses | End::HalfClose | End::BackendCloses => download(&mut stream, plan.download)?,
    }
    if end == End::ClientCloses {
        stream.shutdown(Shutdown::Write).map_err(|failed| error("closing", &failed))?;
    }
    match socket::read(&mut stream, &mut [0; 64]) {
        Got::End => Ok(()),
        Got::Bytes(_) => Err(failure("more bytes than were sent")),
        Got::Error(failed) => Err(error("waiting for the end", &failed)),
    }
}

/// Reads what the backend sends before it resets the connection: RST may overtake it, FIN may not replace it.
fn aborted(stream: &mut TcpStream, pattern: &Pattern, seed: u32, at: u32) -> Result<(), Failure> {
    match socket::receive(stream, pattern, seed, 0, at) {
        Err(Broken::Error(_, failed)) if is_reset(&failed) => return Ok(()),
        other => other.map_err(|failed| broken("downloading before a reset", failed))?,
    }
    refused(stream)
}
