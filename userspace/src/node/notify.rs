//! Messages to the service manager (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The state to report.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// The first packet can be served, or a reload ended.
    Ready,
    /// A reload started, at this monotonic time, as `Type=notify-reload` requires.
    Reloading { monotonic_us: u64 },
    /// The daemon is about to exit.
    Stopping,
}

/// Notifies the service manager, if there is one.
pub(super) fn tell(state: State) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, &text(state))
    {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

fn text(state: State) -> String {
    match state {
        State::Ready => "READY=1".into(),
        State::Reloading { monotonic_us } => format!("RELOADING=1\nMONOTONIC_USEC={monotonic_us}"),
        State::Stopping => "STOPPING=1".into(),
    }
}

fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        // A leading @ stands for the zero byte of an abstract name.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_at_an_abstract_socket() {
        let name = format!("vestibule-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), &text(State::Ready)).unwrap();
        let mut buffer = [0; 64];
        let length = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
    }
}
