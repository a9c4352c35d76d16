//! HTTP on TCP ports that strangers may reach: on chosen addresses, for chosen sources, with limits on connections and time.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::warn;

/// The most connections of a port at once. Further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// The most of them of one client: a quarter, so that one that is broken or means ill leaves room for others.
const OF_CLIENT: usize = 4;
/// A client with IPv6 has all addresses with the same first bits.
const CLIENT_V6_BITS: u32 = 64;
/// The head of a request comes within this time, and the next one on the same connection.
const HEAD: Duration = Duration::from_secs(5);
/// The same where a connection has one request.
const HEAD_ONCE: Duration = Duration::from_secs(2);
/// A connection older than this ends with the answer that it waits for.
const OLD: Duration = Duration::from_secs(60);
/// The time limit for that.
const END: Duration = Duration::from_secs(10);
/// The delay between attempts to bind a port that another process uses.
const PORT_AGAIN: Duration = Duration::from_millis(500);
/// How long a port may be in use before that is reported. The next agent waits for it until the previous one has handed
/// the maps over.
const PORT_LATE: Duration = Duration::from_secs(30);

/// Where a port is served, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The addresses; empty: all of the host.
    pub addresses: Vec<IpAddr>,
    /// Who may connect, besides the host itself; empty: everybody.
    pub sources: Vec<IpNet>,
}

impl Access {
    /// Whether a client may connect. `own`: the address that it connected to.
    fn admits(&self, client: IpAddr, own: IpAddr) -> bool {
        let (client, own) = (client.to_canonical(), own.to_canonical());
        client.is_loopback()
            || client == own
            || self.sources.is_empty()
            || self.sources.iter().any(|net| net.contains(&client))
    }

    fn sockets(&self, port: u16) -> Vec<SocketAddr> {
        match self.addresses.as_slice() {
            // One socket for both families.
            [] => vec![SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)],
            addresses => addresses.iter().map(|address| SocketAddr::new(*address, port)).collect(),
        }
    }
}

/// The connections of a port that are open, by client, and how many were refused because a client had enough.
#[derive(Clone, Debug)]
struct Clients {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    refused: Counter,
}

impl Clients {
    fn new(refused: Counter) -> Self {
        Self { open: Arc::default(), refused }
    }

    /// Counts a connection of a client until what is returned is dropped. `None`: it has as many as it may, and this one is refused.
    fn admit(&self, address: IpAddr) -> Option<Admitted> {
        let client = client(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(client).or_default();
        if *count >= OF_CLIENT {
            self.refused.inc();
            return None;
        }
        *count += 1;
        Some(Admitted { open: Arc::clone(&self.open), client })
    }
}

/// A connection of a client.
struct Admitted {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    client: IpAddr,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.client)),
        }
    }
}

/// Returns what all addresses of a client have in common.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let rest = u128::MAX >> CLIENT_V6_BITS;
            IpAddr::V6((address.to_bits() & !rest).into())
        }
        address => address,
    }
}

/// Serves a port for ever. Connections that are refused because their client has enough are counted in `refused`. While another process uses it, retries: during an update the next agent waits for the previous one.
pub async fn serve(port: u16, access: Access, refused: Counter, router: Router) {
    let clients = Clients::new(refused);
    let mut listeners = JoinSet::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    for socket in access.sockets(port) {
        let (access, clients, router, room) =
            (access.clone(), clients.clone(), router.clone(), Arc::clone(&room));
        listeners
            .spawn(async move { serve_socket(free(socket).await, &access, &clients, &router, &room).await });
    }
    // Dropped with this future, they end.
    while listeners.join_next().await.is_some() {}
}

/// Binds a port on all addresses of the host.
pub async fn bind_all(port: u16) -> io::Result<TcpListener> {
    bind(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)).await
}

/// Serves a port for ever, for everybody, one request a connection. Where there is no room for a connection, the port's oldest one ends: a
/// client that says nothing must not keep out others. `shared`: room for the connections of several ports.
pub async fn serve_once(listener: TcpListener, router: Router, shared: Arc<Semaphore>) {
    let (mut tasks, mut open) = (JoinSet::new(), VecDeque::new());
    loop {
        let accepted = listener.accept().await;
        while tasks.try_join_next().is_some() {}
        open.retain(|connection: &AbortHandle| !connection.is_finished());
        match accepted {
            Ok((stream, _)) => {
                if open.len() >= CONNECTIONS || shared.available_permits() == 0 {
                    open.pop_front().inspect(AbortHandle::abort);
                }
                // Nobody closes it.
                let Ok(permit) = Arc::clone(&shared).acquire_owned().await else { return };
                open.push_back(tasks.spawn(answer(stream, router.clone(), permit, HEAD_ONCE)));
            }
            Err(error) => refused(&listener, &error).await,
        }
    }
}

/// Waits after a connection could not be accepted: the process is out of file descriptors, or the client is gone.
async fn refused(listener: &TcpListener, error: &io::Error) {
    let port = listener.local_addr().map_or(0, |own| own.port());
    warn!(%error, port, "a connection is not accepted");
    sleep(PORT_AGAIN).await;
}

/// Binds a socket once it is free.
async fn free(socket: SocketAddr) -> TcpListener {
    let (begun, mut is_reported) = (Instant::now(), false);
    loop {
        match bind(socket).await {
            Ok(listener) => return listener,
            Err(error) => {
                if begun.elapsed() > PORT_LATE && !std::mem::replace(&mut is_reported, true) {
                    warn!(%error, %socket, "the port for /metrics is not free; it is asked for until it is");
                }
                sleep(PORT_AGAIN).await;
            }
        }
    }
}

/// Where both families are asked for, binds IPv4 alone if the host has no IPv6.
async fn bind(socket: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(socket).await {
        Err(e)
            if socket.ip() == Ipv6Addr::UNSPECIFIED
                && matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
        {
            TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), socket.port())).await
        }
        bound => bound,
    }
}

async fn serve_socket(
    listener: TcpListener,
    access: &Access,
    clients: &Clients,
    router: &Router,
    room: &Arc<Semaphore>,
) {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        // Nobody closes it.
        let Ok(permit) = Arc::clone(room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, client)) => {
                let own = stream.local_addr().map(|own| own.ip());
                if own.is_ok_and(|own| access.admits(client.ip(), own))
                    && let Some(admitted) = clients.admit(client.ip())
                {
                    let answered = answer(stream, router.clone(), permit, HEAD);
                    tasks.spawn(async move {
                        answered.await;
                        drop(admitted);
                    });
                }
            }
            Err(error) => refused(&listener, &error).await,
        }
    }
}

/// Answers requests, each of which begins within `head`; one alone if that is [`HEAD_ONCE`].
async fn answer(stream: TcpStream, router: Router, _permit: OwnedSemaphorePermit, head: Duration) {
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head).keep_alive(head != HEAD_ONCE);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    // An error is the client's: it went away, or was too slow.
    if timeout(OLD, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(END, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    /// Serves on a free port of these addresses.
    async fn served(addresses: &[&str], sources: &[&str]) -> (JoinSet<()>, u16) {
        served_and_counted(addresses, sources, Counter::default()).await
    }

    async fn served_and_counted(
        addresses: &[&str],
        sources: &[&str],
        refused: Counter,
    ) -> (JoinSet<()>, u16) {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let access = Access {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            sources: sources.iter().map(|net| net.parse().unwrap()).collect(),
        };
        let router = Router::new().route("/", get(async || "yes"));
        let mut server = JoinSet::new();
        server.spawn(serve(port, access, refused, router));
        (server, port)
    }

    async fn connect(address: &str, port: u16) -> io::Result<TcpStream> {
        for _ in 0..100 {
            if let Ok(stream) = TcpStream::connect((address, port)).await {
                return Ok(stream);
            }
            sleep(Duration::from_millis(10)).await;
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    /// The same from another address of the host.
    async fn connect_from(own: &str, port: u16) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(own.parse().unwrap(), 0))?;
        socket.connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)).await
    }

    /// The answer to a request on this connection; empty: it was closed.
    async fn ask(stream: &mut TcpStream) -> String {
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await;
        let mut text = String::new();
        let _ = timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.expect("an answer");
        text
    }

    #[tokio::test]
    async fn other_addresses_of_the_host_are_not_served() {
        let (_server, port) = served(&["127.0.0.2"], &[]).await;
        assert!(ask(&mut connect("127.0.0.2", port).await.unwrap()).await.ends_with("yes"));
        let refused = TcpStream::connect(("127.0.0.3", port)).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn the_host_itself_is_always_admitted_and_others_by_the_list() {
        let access = |sources: &[&str]| Access {
            addresses: Vec::new(),
            sources: sources.iter().map(|net| net.parse().unwrap()).collect(),
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ip("192.0.2.1");
        for client in ["192.0.2.9", "::ffff:192.0.2.9", "127.0.0.1", "::1", "192.0.2.1"] {
            assert!(access(&["192.0.2.8/30"]).admits(ip(client), own), "{client}");
        }
        for client in ["192.0.2.12", "::ffff:192.0.2.12", "2001:db8::1"] {
            assert!(!access(&["192.0.2.8/30"]).admits(ip(client), own), "{client}");
            assert!(access(&[]).admits(ip(client), own));
        }
    }

    /// Or a stranger that opens connections and says nothing would keep scrapers out.
    #[tokio::test]
    async fn connections_are_few_and_one_that_says_nothing_ends() {
        let (_server, port) = served(&["127.0.0.1"], &[]).await;
        let mut silent = Vec::new();
        connect("127.0.0.1", port).await.unwrap();
        for number in 0..CONNECTIONS {
            silent.push(connect_from(&format!("127.0.0.{}", 2 + number / OF_CLIENT), port).await.unwrap());
        }
        let begun = Instant::now();
        let mut late = connect("127.0.0.1", port).await.unwrap();
        assert!(ask(&mut late).await.ends_with("yes"));
        assert!(begun.elapsed() > HEAD - Duration::from_secs(1), "it waits until one of them ends");
        for stream in &mut silent {
            let mut text = String::new();
            let _ =
                timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.expect("it ends");
            assert_eq!(text, "");
        }
    }

    /// One client had all of them, and others waited until they ended.
    #[tokio::test]
    async fn a_client_with_many_connections_leaves_room_for_others() {
        let refused = Counter::default();
        let (_server, port) = served_and_counted(&["127.0.0.1"], &[], refused.clone()).await;
        drop(connect("127.0.0.1", port).await.unwrap());
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            silent.push(connect_from("127.0.0.2", port).await.unwrap());
        }
        let begun = Instant::now();
        assert!(ask(&mut connect_from("127.0.0.3", port).await.unwrap()).await.ends_with("yes"));
        assert!(begun.elapsed() < HEAD / 2, "it waited {:?}", begun.elapsed());
        assert_eq!(refused.get(), (2 * CONNECTIONS - OF_CLIENT) as u64);
        // Those that ended make room again.
        drop(silent);
        let mut again = String::new();
        for _ in 0..100 {
            again = ask(&mut connect_from("127.0.0.2", port).await.unwrap()).await;
            if !again.is_empty() {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert!(again.ends_with("yes"));
    }

    #[test]
    fn a_client_is_an_address_or_the_64_bits_that_its_addresses_share() {
        let of = |text: &str| client(text.parse().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    }
}
