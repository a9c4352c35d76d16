//! One probe of one backend: a TCP connection, or a ClientHello that must be answered by a TLS record.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::model::ServerName;
use crate::model::cluster::ProbeKind;

/// Content types of TLS records (RFC 8446, 5.1): alert, handshake.
const RECORDS: [u8; 2] = [21, 22];

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There was no answer within the limit.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The connection was refused or failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The answer was not TLS.
    #[error("what it answers is not TLS")]
    NotTls,
}

/// Probes a backend. Waits at most `limit` for the answer.
pub(super) async fn ask(
    address: SocketAddr,
    kind: ProbeKind,
    name: Option<&ServerName>,
    limit: Duration,
) -> Result<(), Failure> {
    timeout(limit, exchange(address, kind, name)).await.map_err(|_| Failure::Silent(limit))?
}

async fn exchange(address: SocketAddr, kind: ProbeKind, name: Option<&ServerName>) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(address).await?;
    // Close with RST: thousands of probes per second would leave as many sockets in TIME_WAIT.
    stream.set_zero_linger()?;
    if kind == ProbeKind::Tcp {
        return Ok(());
    }
    stream.write_all(&client_hello(name)).await?;
    let mut head = [0; 5];
    stream.read_exact(&mut head).await?;
    if is_record(&head) { Ok(()) } else { Err(Failure::NotTls) }
}

/// Checks a record's content type and version. An alert is valid, too: the server is alive but rejects it.
fn is_record(head: &[u8; 5]) -> bool {
    RECORDS.contains(&head[0]) && head[1] == 3
}

/// Returns a ClientHello that any TLS 1.2 server accepts (RFC 5246, 7.4.1.2). Adds the name (RFC 6066), if any.
fn client_hello(name: Option<&ServerName>) -> Vec<u8> {
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let name = name.as_str().as_bytes();
        // server_name: a list of one entry of type host_name.
        let entry = [&[0][..], &vector16(name)].concat();
        extension(&mut extensions, 0, &vector16(&entry));
    }
    // supported_groups: x25519, secp256r1, secp384r1. signature_algorithms: ECDSA and RSA with SHA-256 to SHA-512.
    extension(&mut extensions, 10, &vector16(&[0, 29, 0, 23, 0, 24]));
    extension(&mut extensions, 11, &[1, 0]);
    extension(&mut extensions, 13, &vector16(&[4, 3, 5, 3, 6, 3, 8, 4, 8, 5, 8, 6, 4, 1, 5, 1, 6, 1]));
    let mut body = vec![3, 3];
    // Not a secret: the handshake is never finished.
    body.extend((0..32).map(|i| i * 7 + 1));
    body.push(0);
    // ECDHE with AES-GCM and ChaCha20, ECDSA and RSA; plain RSA with AES-GCM for servers without these.
    let suites = [0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0xcc, 0xa9, 0xcc, 0xa8, 0x00, 0x9c];
    body.extend(vector16(&suites));
    body.extend([1, 0]);
    body.extend(vector16(&extensions));
    let mut message = vec![1, 0];
    message.extend(vector16(&body));
    let mut record = vec![22, 3, 1];
    record.extend(vector16(&message));
    record
}

fn extension(to: &mut Vec<u8>, kind: u16, data: &[u8]) {
    to.extend(kind.to_be_bytes());
    to.extend(vector16(data));
}

/// Returns the bytes, preceded by their length as two bytes, big-endian. All of ours are far below 64 KiB.
fn vector16(bytes: &[u8]) -> Vec<u8> {
    let mut vector = (bytes.len() as u16).to_be_bytes().to_vec();
    vector.extend(bytes);
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::wire::client_hello::{Outcome, parse};
    use tokio::net::TcpListener;

    #[test]
    fn the_hello_is_one_that_our_own_parser_takes() {
        let name = ServerName::new("tenant-a.k8s.example.com").unwrap();
        let hello = client_hello(Some(&name));
        let (outcome, parser) = parse(&hello);
        let found = &parser.name[..usize::from(parser.name_length)];
        assert_eq!((outcome, found), (Outcome::Name, name.as_str().as_bytes()), "{hello:02x?}");
        assert_eq!(parse(&client_hello(None)).0, Outcome::NoName);
    }

    /// Serves one connection: sends these bytes and closes it.
    async fn serve(answer: &'static [u8]) -> SocketAddr {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut hello = [0; 512];
            let _ = stream.read(&mut hello).await;
            let _ = stream.write_all(answer).await;
        });
        address
    }

    #[test]
    fn records_are_answers_and_other_bytes_are_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limit = Duration::from_secs(5);
            let alert = serve(&[21, 3, 3, 0, 2, 2, 40]).await;
            ask(alert, ProbeKind::Tls, None, limit).await.unwrap();
            let http = serve(b"HTTP/1.1 400 Bad Request\r\n").await;
            assert!(matches!(ask(http, ProbeKind::Tls, None, limit).await, Err(Failure::NotTls)));
            let closed = serve(&[]).await;
            assert!(matches!(ask(closed, ProbeKind::Tls, None, limit).await, Err(Failure::Io(_))));
            let tcp = serve(&[]).await;
            ask(tcp, ProbeKind::Tcp, None, limit).await.unwrap();
            let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let limit = Duration::from_millis(50);
            let answer = ask(silent.local_addr().unwrap(), ProbeKind::Tls, None, limit).await;
            assert!(matches!(answer, Err(Failure::Silent(_))));
        });
    }
}
