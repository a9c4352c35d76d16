//! The API over HTTP/1.1, for requests that must be fast: kubectl takes a tenth of a second to start.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustls::ClientConfig;
use serde_json::Value;

use super::places;
use crate::tls::{self, ClientStream};

/// The API server's address and the client's credentials.
#[derive(Clone)]
pub struct Rest {
    pub(super) address: SocketAddr,
    pub(super) netns: Option<PathBuf>,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) token: String,
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Rest {
    /// Opens a new connection, for many successive requests.
    pub fn connect(&self) -> Result<Connection> {
        let connect = || tls::connect(self.address, Arc::clone(&self.tls), "localhost");
        let stream = places::inside(self.netns.as_deref(), connect)??;
        Ok(Connection { stream: BufReader::new(stream), token: self.token.clone() })
    }
}

/// A persistent connection to the API.
pub struct Connection {
    stream: BufReader<ClientStream>,
    token: String,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// `POST` to a collection such as `/api/v1/namespaces`.
    pub fn create(&mut self, path: &str, object: &Value) -> Result<Value> {
        self.expect_success("POST", path, "application/json", object.to_string().as_bytes())
    }

    /// `PATCH` by a JSON merge patch (RFC 7396).
    pub fn merge(&mut self, path: &str, patch: &Value) -> Result<Value> {
        self.expect_success("PATCH", path, "application/merge-patch+json", patch.to_string().as_bytes())
    }

    /// `PUT` of a whole object, with its resourceVersion if that matters.
    pub fn replace(&mut self, path: &str, object: &Value) -> Result<Value> {
        self.expect_success("PUT", path, "application/json", object.to_string().as_bytes())
    }

    /// `GET` of an object or a list.
    pub fn read(&mut self, path: &str) -> Result<Value> {
        self.expect_success("GET", path, "application/json", b"")
    }

    /// `DELETE` of an object, or of a whole collection.
    pub fn delete(&mut self, path: &str) -> Result<Value> {
        self.expect_success("DELETE", path, "application/json", b"")
    }

    fn expect_success(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<Value> {
        let (status, answer) = self.request(method, path, kind, body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&answer));
        }
        serde_json::from_slice(&answer).with_context(|| format!("{method} {path}: not JSON"))
    }

    /// Sends any request; returns status and body of the answer.
    pub fn request(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nAccept: application/json\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.token,
            body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(&[head.as_bytes(), body].concat())?;
        stream.flush()?;
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no status line: {line:?}"))?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                _ if line.is_empty() => break,
                Some(("content-length", value)) => length = value.parse().context("Content-Length")?,
                Some(("transfer-encoding", "chunked")) => chunked = true,
                _ => {}
            }
        }
        let body = if chunked { self.chunks()? } else { self.bytes(length)? };
        Ok((status, body))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let count = self.stream.read_line(&mut line).context("reading the API server's answer")?;
        if count == 0 {
            bail!("the API server closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).context("reading the API server's answer")?;
        Ok(bytes)
    }

    /// RFC 9112 section 7.1, without trailers.
    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let length =
                usize::from_str_radix(&line, 16).with_context(|| format!("a chunk's length: {line:?}"))?;
            body.extend(self.bytes(length)?);
            self.line()?;
            if length == 0 {
                return Ok(body);
            }
        }
    }
}
