//! `/metrics`, `/readyz` and `/livez` over HTTP: on a port, and on a socket for `vestibule probe`. On the socket alone, `/tenants/ROUTE`:
//! whose a route is, for `vestibule explain`, and `/vips`: who announces what on the node's segments, for `vestibule vips`.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::UnixListener;

/// The content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The most bytes of an answer that a probe reads.
const ANSWER_BYTES: u64 = 1 << 16;
/// The same of `/vips`: some 300 for an address.
const VIPS_BYTES: u64 = 1 << 26;

/// Yes or no, with the reasons, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Yes: status 200. No: 503.
    pub is_ok: bool,
    /// The human-readable text.
    pub text: String,
}

impl Answer {
    /// Yes if there is no reason against it. The remarks are included in either case.
    pub fn of(against: &[String], remarks: &[String]) -> Self {
        let is_ok = against.is_empty();
        let mut text = String::from(if is_ok { "ok\n" } else { "not ok\n" });
        for line in against.iter().chain(remarks) {
            text.push_str(line);
            text.push('\n');
        }
        Self { is_ok, text }
    }
}

/// A process that answers probes.
pub trait Asked: Send + Sync + 'static {
    /// Returns whether it can do its work.
    fn ready(&self) -> Answer;
    /// Returns whether it runs. If not, it should be restarted.
    fn live(&self) -> Answer;
    /// Returns OpenMetrics text. May read maps, which can be slow, so it is called on a blocking thread.
    fn metrics(&self) -> String;
    /// Returns whose this route is.
    fn tenant(&self, _route: &str) -> Option<String> {
        None
    }
    /// Returns, as JSON, what it knows of the node's segments. Waits for another thread, so it is called on a blocking one.
    fn vips(&self) -> Option<String> {
        None
    }
}

/// Returns a router for the three paths.
pub fn router(asked: Arc<dyn Asked>) -> Router {
    let (ready, live) = (Arc::clone(&asked), Arc::clone(&asked));
    Router::new()
        .route("/readyz", get(async move || plain(&ready.ready())))
        .route("/livez", get(async move || plain(&live.live())))
        .route("/metrics", get(async move || metrics(asked).await))
}

fn plain(answer: &Answer) -> impl IntoResponse + use<> {
    let status = if answer.is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, answer.text.clone())
}

async fn metrics(asked: Arc<dyn Asked>) -> impl IntoResponse {
    match tokio::task::spawn_blocking(move || asked.metrics()).await {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], format!("{error}\n"))
        }
    }
}

/// Creates a socket at `path`, accessible only by root. Replaces one left by an earlier process.
pub fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    let mut next = path.as_os_str().to_owned();
    next.push(format!(".{}", std::process::id()));
    remove_if_there(Path::new(&next))?;
    let listener = UnixListener::bind(&next)?;
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600))?;
    // The rename is atomic: there is always a socket, and no process removes the socket of another.
    std::fs::rename(&next, path)?;
    Ok(listener)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Serves on a socket created by [`bind_socket`].
pub async fn serve_socket(listener: UnixListener, asked: Arc<dyn Asked>) -> io::Result<()> {
    let (tenants, segments) = (Arc::clone(&asked), Arc::clone(&asked));
    let tenant = async move |extract::Path(route): extract::Path<String>| match tenants.tenant(&route) {
        Some(tenant) => (StatusCode::OK, tenant),
        None => (StatusCode::NOT_FOUND, String::new()),
    };
    let vips = async move || match tokio::task::spawn_blocking(move || segments.vips()).await {
        Ok(Some(text)) => (StatusCode::OK, text),
        Ok(None) | Err(_) => (StatusCode::NOT_FOUND, String::new()),
    };
    let router = router(asked).route("/tenants/{*route}", get(tenant)).route("/vips", get(vips));
    axum::serve(listener, router).await
}

/// Asks the process at this socket whose a route is. `None`: it does not know, or nobody answers.
pub fn tenant_of(socket: &Path, route: &str, limit: Duration) -> Option<String> {
    let answer = ask(socket, &format!("/tenants/{}", escaped(route)), limit).ok()?;
    answer.is_ok.then_some(answer.text)
}

/// Asks the process at this socket what it knows of the node's segments. `None`: it does not know, or nobody answers.
pub fn vips_of(socket: &Path, limit: Duration) -> Option<String> {
    let answer = ask_for(socket, "/vips", limit, VIPS_BYTES).ok()?;
    answer.is_ok.then_some(answer.text)
}

/// Writes all but what a path may hold in hexadecimal (RFC 3986 section 2.1).
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Requests a path such as `/readyz` on a process's socket. Waits at most `limit` for each part of the answer.
pub fn ask(socket: &Path, path: &str, limit: Duration) -> io::Result<Answer> {
    ask_for(socket, path, limit, ANSWER_BYTES)
}

fn ask_for(socket: &Path, path: &str, limit: Duration, bytes: u64) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: vestibule\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(bytes).read_to_string(&mut text)?;
    parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an answer that is not HTTP"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.")?.split_whitespace().nth(1)?;
    Some(Answer { is_ok: code == "200", text: body.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Process {
        is_ready: AtomicBool,
    }

    impl Asked for Process {
        fn ready(&self) -> Answer {
            let against =
                if self.is_ready.load(Ordering::Relaxed) { vec![] } else { vec!["not synced".into()] };
            Answer::of(&against, &["stale: Gateway".into()])
        }
        fn live(&self) -> Answer {
            Answer::of(&[], &[])
        }
        fn metrics(&self) -> String {
            "# EOF\n".into()
        }
    }

    #[test]
    fn a_socket_answers_yes_no_and_metrics() {
        let folder = std::env::temp_dir().join(format!("vestibule-admin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("admin.sock");
        let process = Arc::new(Process::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // A socket left by an earlier process is no obstacle.
            drop(bind_socket(&path).unwrap());
            let served = Arc::clone(&process);
            tokio::spawn(serve_socket(bind_socket(&path).unwrap(), served));
            let asked = path.clone();
            let ask = async move |what: &'static str| {
                let path = asked.clone();
                let limit = Duration::from_secs(5);
                tokio::task::spawn_blocking(move || ask(&path, what, limit)).await.unwrap().unwrap()
            };
            let no = Answer { is_ok: false, text: "not ok\nnot synced\nstale: Gateway\n".into() };
            assert_eq!(ask("/readyz").await, no);
            assert!(ask("/livez").await.is_ok);
            process.is_ready.store(true, Ordering::Relaxed);
            let yes = Answer { is_ok: true, text: "ok\nstale: Gateway\n".into() };
            assert_eq!(ask("/readyz").await, yes);
            assert_eq!(ask("/metrics").await.text, "# EOF\n");
            assert!(!ask("/other").await.is_ok);
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_not_http_is_no_answer() {
        assert_eq!(
            parse("HTTP/1.0 200 OK\r\nx: y\r\n\r\nok\n"),
            Some(Answer { is_ok: true, text: "ok\n".into() })
        );
        assert!(!parse("HTTP/1.1 503 x\r\n\r\n").unwrap().is_ok);
        assert_eq!(parse("ok\n"), None);
        assert_eq!(parse("SSH-2.0\r\n\r\n"), None);
    }
}
