//! A validating admission webhook, served by the test's process over HTTPS (HTTP/1.1).

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::tls::Authority;

/// What the webhook is asked about.
#[derive(Debug)]
pub struct Review {
    /// The object's name.
    pub name: String,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: String,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may go on.
    Admit,
    /// It is refused, for this reason.
    Refuse(String),
    /// Nothing, until the API server gives up.
    Hang,
}

type Judge = dyn Fn(&Review) -> Verdict + Send + Sync;

/// A webhook that listens on loopback until it is dropped.
pub struct Webhook {
    at: SocketAddr,
    authority: String,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Starts it, with an authority of its own. `judge` is asked about each request, from many threads.
    pub fn start(judge: impl Fn(&Review) -> Verdict + Send + Sync + 'static) -> Result<Self> {
        let authority = Authority::new("webhook")?;
        let config = authority.server_config(&authority.server(&["127.0.0.1"])?)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening")?;
        let at = listener.local_addr()?;
        let ends = Arc::new(AtomicBool::new(false));
        let (judge, ended): (Arc<Judge>, _) = (Arc::new(judge), Arc::clone(&ends));
        let accepting = std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (config, judge) = (Arc::clone(&config), Arc::clone(&judge));
                // It ends with its connection, which the API server ends.
                std::thread::spawn(move || {
                    if let Err(error) = serve(socket, config, &*judge) {
                        eprintln!("a connection of the webhook: {error:#}");
                    }
                });
            }
        });
        Ok(Self { at, authority: authority.pem().to_owned(), ends, accepting: Some(accepting) })
    }

    /// Returns the configuration that has it asked: `webhooks[0]`, without its rules.
    pub fn configuration(&self, name: &str, rules: &Value) -> Value {
        let client =
            json!({"url": format!("https://{}/", self.at), "caBundle": base64(self.authority.as_bytes())});
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [{
                "name": format!("{name}.example.com"), "clientConfig": client, "rules": rules, "timeoutSeconds": 30,
                "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            }],
        })
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // So that `accept` returns.
        drop(TcpStream::connect(self.at));
        if let Some(Err(_)) = self.accepting.take().map(JoinHandle::join) {
            eprintln!("the webhook panicked");
        }
    }
}

/// Serves the requests of a connection, one after the other.
fn serve(socket: TcpStream, config: Arc<ServerConfig>, judge: &Judge) -> Result<()> {
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(config)?, socket));
    while let Some(body) = request(&mut stream)? {
        let review: Value = serde_json::from_slice(&body).context("what is asked is no JSON")?;
        let request = &review["request"];
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        let verdict = judge(&Review { name: text("name"), operation: text("operation") });
        let mut response = json!({"uid": request["uid"], "allowed": verdict == Verdict::Admit});
        match verdict {
            Verdict::Admit => {}
            Verdict::Refuse(why) => response["status"] = json!({"code": 403, "message": why}),
            Verdict::Hang => {
                // Whether by an end or an error: the API server has given up.
                let _ = stream.read(&mut [0]);
                return Ok(());
            }
        }
        let body = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = stream.get_mut();
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        stream.flush()?;
    }
    Ok(())
}

/// Returns the body of the next request; `None`: there is none.
fn request(stream: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut length = 0;
    for number in 0.. {
        let mut line = String::new();
        match stream.read_line(&mut line) {
            // The API server ends what it does not need any more by an error too.
            Ok(0) | Err(_) if number == 0 => return Ok(None),
            count => count.context("reading a request")?,
        };
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().context("Content-Length")?,
            None if number > 0 => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).context("reading a request's body")?;
    Ok(Some(body))
}

/// RFC 4648 section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place)) & 0x3f;
            text.push(if place <= chunk.len() { char::from(ALPHABET[sextet as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// RFC 4648 section 10.
    #[test]
    fn base64_is_as_the_standard_has_it() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
