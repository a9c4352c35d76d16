//! haproxy and nginx, configured as a user would to pass TLS through by name.

use std::fmt::Write as _;
use std::fs::File;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tests::temp::TempDir;

use super::Proxy;
use crate::rig::{Rig, SERVERS, VIP};

/// Starts haproxy with two threads, TCP splicing, and a map from names to backends.
pub(super) fn haproxy(rig: &Rig, tenants: u32) -> Result<Proxy> {
    let files = TempDir::new()?;
    let (mut map, mut backends) = (String::new(), String::new());
    for (name, port) in super::tenants(rig, tenants) {
        writeln!(map, "{name} {name}")?;
        writeln!(backends, "backend {name}\n  server s {}:{port}", SERVERS.ip())?;
    }
    let map = files.write("names.map", map)?;
    let config = format!(
        "global
  nbthread 2
  maxconn 7000
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend shared
  bind {VIP}
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req.ssl_hello_type 1 }}
  use_backend %[req.ssl_sni,lower,map({})]
{backends}",
        map.display()
    );
    let config = files.write("haproxy.cfg", config)?;
    let mut command = rig.node.command("haproxy");
    command.args(["-db", "-f"]).arg(config);
    start(rig, command, files)
}

/// Starts nginx with two workers, each with its own listening socket, and `ssl_preread`.
pub(super) fn nginx(rig: &Rig, tenants: u32) -> Result<Proxy> {
    let files = TempDir::new()?;
    let mut map = String::new();
    for (name, port) in super::tenants(rig, tenants) {
        writeln!(map, "    {name} {}:{port};", SERVERS.ip())?;
    }
    let folder = files.path().display();
    let config = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
worker_processes 2;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 9000; multi_accept on; }}
stream {{
  map_hash_max_size 262144;
  map_hash_bucket_size 128;
  map $ssl_preread_server_name $backend {{
{map}  }}
  server {{
    listen {VIP} reuseport backlog=4096;
    ssl_preread on;
    proxy_pass $backend;
    proxy_connect_timeout 5s;
    proxy_timeout 1h;
    tcp_nodelay on;
    proxy_half_close on;
  }}
}}
"
    );
    let config = files.write("nginx.conf", config)?;
    let mut command = rig.node.command("nginx");
    command.arg("-c").arg(config);
    start(rig, command, files)
}

/// Adds the address to the node, starts the proxy and waits until it listens.
fn start(rig: &Rig, mut command: Command, files: TempDir) -> Result<Proxy> {
    rig.node.ip(&format!("addr add {}/32 dev lo\n", VIP.ip()))?;
    // Give the proxy as many local ports as possible.
    rig.node.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
    rig.node.sysctl("net/ipv4/tcp_max_tw_buckets", "2000000")?;
    rig.node.sysctl("net/core/somaxconn", "4096")?;
    let path = files.path().join("log");
    let log = File::create(&path)?;
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    let mut proxy = Proxy { child, _files: files };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        if rig.node.run(|| TcpStream::connect(VIP)).is_ok() {
            return Ok(proxy);
        }
        if let Some(status) = proxy.child.try_wait()? {
            bail!("{program} ended with {status}:\n{}", std::fs::read_to_string(path).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("{program} does not listen at {VIP}")
}
