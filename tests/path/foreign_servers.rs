//! Backends that run other TLS implementations.

use std::net::SocketAddr;

use tests::addresses::{FAMILIES, TLS_PORT, backend};
use tests::clients::{KINDS, User};
use tests::config::{Backend, Config, SHARED, listener, route};
use tests::foreign::ForeignServer;
use tests::topology::Options;

use crate::scene::Scene;

const OPENSSL_PORT: u16 = 8443;
const PYTHON_PORT: u16 = 8444;

#[test]
fn every_kind_of_client_talks_to_openssl_and_python_servers() {
    tests::skip_without_root!();
    let mut config = Config::empty();
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    for (name, port) in [("openssl", OPENSSL_PORT), ("python", PYTHON_PORT)] {
        let backends = FAMILIES.map(|family| Backend::new(backend(family, 0, 0), port)).to_vec();
        config.routes.push(route(name, &[SHARED], &[&format!("{name}.example.org")], backends));
    }
    let scene = Scene::with(&Options::default(), &config);
    let tenant = &scene.lab.tenants[0];
    let user = User::new(&tenant.authority, "alice").unwrap();
    let identity = tenant.authority.server(&["openssl.example.org", "python.example.org"]).unwrap();
    let identity = tenant.authority.files(&identity).unwrap();
    let mut servers = Vec::new();
    for family in FAMILIES {
        let at = |port| SocketAddr::new(backend(family, 0, 0), port);
        servers.push(ForeignServer::openssl(&tenant.namespace, at(OPENSSL_PORT), &identity).unwrap());
        servers.push(ForeignServer::python(&tenant.namespace, at(PYTHON_PORT), &identity).unwrap());
    }
    for family in FAMILIES {
        for name in ["openssl", "python"] {
            for kind in KINDS {
                let to = scene.lab.vip(family, TLS_PORT);
                let said = user.ask(kind, &scene.lab.client, to, &format!("{name}.example.org"), false);
                assert_eq!(said.unwrap(), format!("{name} -"), "{kind:?} over {family:?}");
            }
        }
    }
    drop(servers);
    scene.assert_nothing_leaks();
}
