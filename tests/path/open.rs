//! Connections to echo servers that a test keeps open.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tests::addresses::{Family, TLS_PORT};
use tests::hello::hello;
use tests::net::Namespace;
use tests::raw::{End, end_of};
use tests::server::read_line;
use tests::tls;

use crate::scene::Scene;

/// A connection that has reached a backend.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) stream: TcpStream,
    /// The name that the backend sent.
    pub(crate) backend: String,
}

impl Open {
    /// Opens a connection to a name on the shared port.
    pub(crate) fn by_name(scene: &Scene, family: Family, name: &str) -> Self {
        let bytes = hello().name(name).bytes();
        Self::to(scene, scene.lab.vip(family, TLS_PORT), &bytes)
    }

    /// Opens a connection and sends these bytes first, which the server echoes.
    pub(crate) fn to(scene: &Scene, to: SocketAddr, bytes: &[u8]) -> Self {
        Self::from(&scene.lab.client, to, bytes)
    }

    /// The same from another namespace than the client's.
    pub(crate) fn from(namespace: &Namespace, to: SocketAddr, bytes: &[u8]) -> Self {
        let mut stream = namespace.run(|| tls::dial(to)).unwrap();
        stream.write_all(bytes).unwrap();
        let backend = read_line(&mut stream).unwrap().unwrap();
        let mut echo = vec![0; bytes.len()];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(echo, bytes);
        Self { stream, backend }
    }

    /// Opens connections until one reaches this backend.
    pub(crate) fn until(scene: &Scene, family: Family, name: &str, backend: &str) -> Self {
        let found = (0..200).map(|_| Self::by_name(scene, family, name)).find(|open| open.backend == backend);
        found.unwrap_or_else(|| panic!("none of 200 connections to {name} reached {backend}"))
    }

    /// Sends more than fits into one packet of any size, and asserts that it is echoed.
    pub(crate) fn assert_carries(&mut self) {
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
        let mut writer = self.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&bytes).unwrap());
            let mut echo = vec![0; bytes.len()];
            self.stream.read_exact(&mut echo).unwrap();
            assert!(echo == bytes);
        });
    }

    /// Sends bytes and asserts that they are echoed.
    pub(crate) fn assert_alive(&mut self) {
        self.stream.write_all(b"still there?").unwrap();
        let mut echo = [0; 12];
        self.stream.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"still there?");
    }

    /// Asserts that an RST arrives within this time, without sending anything.
    pub(crate) fn assert_reset(&mut self, within: Duration) {
        let end = end_of(&mut self.stream, within).unwrap();
        assert_eq!(end, End::Reset, "connection to {} within {within:?}", self.backend);
    }
}
