//! Backends: servers that understand the commands below, over TLS or plain TCP. Each connection has its own
//! thread.
//!
//! | line from the client | what the server does |
//! | --- | --- |
//! | `NAME` | answers `<its name> <common name of the client's certificate or ->` |
//! | `ECHO` | sends back every byte until the client ends |
//! | `SEND <n> <seed>` | sends `n` bytes of [`crate::bytes`] |
//! | `SINK <n>` | reads `n` bytes, answers their SHA-256 in hex |
//! | `COUNT` | reads until the client ends its half, then answers `<n> <SHA-256>` and ends |
//! | `RESET` | resets the connection |
//! | `GET ...` | reads an HTTP request, answers with the line of `NAME`, ends |

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::net::Namespace;
use crate::{bytes, ip_options};

/// Connections that may wait for `accept`.
const BACKLOG: i32 = 4096;

/// The protocol of a server.
#[derive(Clone, Debug)]
pub enum Speech {
    /// The commands above, over TLS.
    Tls(Arc<ServerConfig>),
    /// The commands above, over plain TCP.
    Plain,
    /// Sends its name and a line feed, then echoes every byte: shows which server received exactly which
    /// bytes.
    Echo,
    /// The same, in packets with IPv4 options or IPv6 extension headers.
    EchoWithOptions,
    /// The same, with its name, a blank and the address of its client.
    EchoToWhom,
}

/// A listening server; it ends, with all its connections, when dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    speech: Speech,
    accepted: AtomicU64,
    open: Mutex<HashMap<u64, TcpStream>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Server {
    /// Starts a server that listens in a namespace.
    pub fn start(namespace: &Namespace, at: SocketAddr, name: &str, speech: Speech) -> Result<Self> {
        let listener =
            namespace.run(|| TcpListener::bind(at)).with_context(|| format!("listening at {at}"))?;
        // SAFETY: listen(2) again on a listening socket only changes the length of its queue.
        if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
            return Err(io::Error::last_os_error()).context("listen");
        }
        let open = Mutex::new(HashMap::new());
        let shared = Arc::new(Shared { name: name.into(), speech, accepted: AtomicU64::new(0), open });
        let (theirs, own) = (listener.try_clone()?, Arc::clone(&shared));
        let accepting = std::thread::Builder::new().name(name.into()).spawn(move || accept(&theirs, &own))?;
        Ok(Self { shared, listener, accepting: Some(accepting) })
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared.open().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: shutdown(2) on our own descriptor; it makes the blocked accept(2) return.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in self.shared.open().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept() {
        let id = shared.accepted.fetch_add(1, Ordering::Relaxed);
        let Ok(copy) = stream.try_clone() else { return };
        shared.open().insert(id, copy);
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new().stack_size(512 * 1024).spawn(move || {
            // A client may disconnect, so errors are ignored: the test checks what the client saw.
            let _ = serve(stream, &own);
            own.open().remove(&id);
        });
        if let Err(error) = thread {
            eprintln!("{}: no thread for a connection: {error}", shared.name);
            shared.open().remove(&id);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match &shared.speech {
        Speech::Tls(config) => {
            let mut connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
            while connection.is_handshaking() {
                connection.complete_io(&mut stream)?;
            }
            let certificate = connection.peer_certificates().and_then(|chain| chain.first());
            let client = certificate.and_then(crate::tls::common_name).unwrap_or_else(|| "-".into());
            let socket = stream.try_clone()?;
            let mut tls = StreamOwned::new(connection, stream);
            let result = converse(&mut tls, &socket, &shared.name, &client);
            tls.conn.send_close_notify();
            let _ = tls.flush();
            result
        }
        Speech::Plain => {
            let socket = stream.try_clone()?;
            converse(&mut stream, &socket, &shared.name, "-")
        }
        Speech::Echo | Speech::EchoWithOptions | Speech::EchoToWhom => {
            if matches!(shared.speech, Speech::EchoWithOptions) {
                ip_options::set(&stream)?;
            }
            let to_whom = match shared.speech {
                Speech::EchoToWhom => format!(" {}", stream.peer_addr()?),
                _ => String::new(),
            };
            stream.write_all(format!("{}{to_whom}\n", shared.name).as_bytes())?;
            let mut reader = stream.try_clone()?;
            io::copy(&mut reader, &mut stream)?;
            stream.shutdown(Shutdown::Write)
        }
    }
}

fn converse(
    stream: &mut (impl Read + Write),
    socket: &TcpStream,
    name: &str,
    client: &str,
) -> io::Result<()> {
    loop {
        let Some(line) = read_line(stream)? else { return Ok(()) };
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match command {
            "NAME" => stream.write_all(format!("{name} {client}\n").as_bytes())?,
            "ECHO" => return echo(stream),
            "SEND" => {
                let (count, seed) = (number().unwrap_or(0), number().unwrap_or(0));
                bytes::send(stream, count, seed)?;
            }
            "SINK" => {
                let hash = bytes::receive(stream, number().unwrap_or(0))?;
                stream.write_all(format!("{hash}\n").as_bytes())?;
            }
            "COUNT" => {
                let (count, hash) = bytes::receive_all(stream)?;
                stream.write_all(format!("{count} {hash}\n").as_bytes())?;
                return stream.flush();
            }
            "RESET" => return reset(socket),
            "GET" => {
                while read_line(stream)?.is_some_and(|line| !line.trim().is_empty()) {}
                let body = format!("{name} {client}\n");
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                )?;
                return stream.flush();
            }
            other => return Err(io::Error::other(format!("unknown word {other}"))),
        }
        stream.flush()?;
    }
}

fn echo(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
        stream.flush()?;
    }
}

/// Reads a line without reading a byte beyond it; returns `None` at the end of the stream.
pub fn read_line(stream: &mut impl Read) -> io::Result<Option<String>> {
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(1, stream.take(4096));
    let length = reader.read_line(&mut line)?;
    Ok((length > 0).then(|| line.trim_end().to_owned()))
}

/// Makes the next close of this socket send RST instead of FIN.
pub fn reset(socket: &TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option value is live and its size is passed along.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    if set != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
