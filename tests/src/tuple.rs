//! Map keys of connections, built from their endpoints.

use std::net::SocketAddr;

use common::maps::address::Port;
use common::maps::flow::{BackendTuple, ClientTuple};

/// A TCP connection as its client sees it.
pub fn client_tuple(client: SocketAddr, vip: SocketAddr) -> ClientTuple {
    let (client_port, vip_port) = (Port::new(client.port()), Port::new(vip.port()));
    ClientTuple::tcp(client.ip().into(), vip.ip().into(), client_port, vip_port)
}

/// A TCP connection as its backend sees it.
pub fn backend_tuple(backend: SocketAddr, source: SocketAddr) -> BackendTuple {
    let (backend_port, source_port) = (Port::new(backend.port()), Port::new(source.port()));
    BackendTuple::tcp(backend.ip().into(), source.ip().into(), backend_port, source_port)
}
