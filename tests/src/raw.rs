//! Clients below TLS: they write given bytes in chosen pieces and report how the connection ended.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::server::read_line;
use crate::tls::{PATIENCE, dial};

/// Writes bytes in pieces that end at these offsets, each as its own segment.
pub fn write_split(stream: &mut TcpStream, bytes: &[u8], ends: &[usize]) -> io::Result<()> {
    let mut from = 0;
    for end in ends.iter().copied().chain([bytes.len()]) {
        // Without Nagle's algorithm every write is sent at once (RFC 9293 section 3.7.4).
        stream.write_all(&bytes[from..end])?;
        from = end;
    }
    Ok(())
}

/// Sends a hello in pieces to a listener whose backends send their name and then echo
/// ([`crate::server::Speech::Echo`]). Returns the backend's name, or an error if the backend did not receive
/// exactly these bytes.
pub fn hello(to: SocketAddr, bytes: &[u8], ends: &[usize]) -> Result<String> {
    let mut stream = dial(to).context("connecting")?;
    write_split(&mut stream, bytes, ends).context("writing the hello")?;
    let name =
        read_line(&mut stream).context("reading the backend's name")?.context("ended without a name")?;
    let mut echo = vec![0; bytes.len()];
    stream.read_exact(&mut echo).context("reading the hello back")?;
    ensure!(echo == bytes, "the backend {name} got other bytes than were sent");
    Ok(name)
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By RST.
    Reset,
    /// By FIN.
    Closed,
    /// Not within the time limit.
    Open,
}

/// Reads until the connection ends or the time is over; received bytes are discarded.
pub fn end_of(stream: &mut TcpStream, within: Duration) -> io::Result<End> {
    let end = read_to_end(stream, within);
    stream.set_read_timeout(Some(PATIENCE))?;
    end
}

fn read_to_end(stream: &mut TcpStream, within: Duration) -> io::Result<End> {
    let start = Instant::now();
    let mut buffer = [0; 4096];
    loop {
        let Some(left) = within.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(End::Open);
        };
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(End::Closed),
            Ok(_) => {}
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                    return Ok(End::Reset);
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(End::Open),
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

/// Connects and sends bytes. Returns how the connection ended, and the time from the write until then.
pub fn refused(to: SocketAddr, bytes: &[u8], within: Duration) -> Result<(End, Duration)> {
    let mut stream = dial(to).context("connecting")?;
    stream.write_all(bytes).context("writing")?;
    let start = Instant::now();
    let end = end_of(&mut stream, within)?;
    Ok((end, start.elapsed()))
}
