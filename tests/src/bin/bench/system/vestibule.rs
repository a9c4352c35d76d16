//! Vestibule: the real daemon with a configuration file.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use load::content::host_name;
use tests::config::Config;
use tests::daemon::Daemon;
use tests::net::Namespace;

use crate::rig::{Rig, SERVERS, VIP};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
}

/// Returns `maxNames` for this many tenants.
pub(crate) fn names_most(tenants: u32) -> u32 {
    tenants.next_power_of_two().max(4096)
}

/// Returns the file: one listener, and for each tenant a route with one name and one backend. Flows and
/// hellos have their defaults.
pub(crate) fn text(tenants: u32, servers: u32, format: Format, names: Option<u32>) -> String {
    let names = names.unwrap_or_else(|| names_most(tenants));
    let (address, vip, port) = (SERVERS.ip(), VIP.ip(), VIP.port());
    let server = |tenant: u32| SERVERS.port() + (tenant % servers) as u16;
    let mut text = String::new();
    // Written by hand: a serialiser that is not optimised takes too long for a million routes.
    let written = match format {
        Format::Json => {
            text += &format!(
                "{{\"apiVersion\":\"vestibule.dev/v1alpha1\",\"kind\":\"StaticConfig\",\"settings\":{{\"maxNames\":{names}}},\n\
                 \"listeners\":[{{\"name\":\"shared\",\"addresses\":[\"{vip}\"],\"port\":{port},\"protocol\":\"TLS\"}}],\n\"routes\":["
            );
            (0..tenants).try_for_each(|tenant| {
                let comma = if tenant == 0 { "" } else { "," };
                write!(
                    text,
                    "{comma}\n{{\"name\":\"tenant-{tenant}\",\"listeners\":[\"shared\"],\"hostnames\":[\"{}\"],\
                     \"backends\":[{{\"address\":\"{address}\",\"port\":{},\"weight\":1}}]}}",
                    host_name(tenant),
                    server(tenant)
                )
            })
        }
        Format::Yaml => {
            text += &format!(
                "apiVersion: vestibule.dev/v1alpha1\nkind: StaticConfig\nsettings: {{ maxNames: {names} }}\nlisteners:\n  \
                 - {{ name: shared, addresses: [\"{vip}\"], port: {port}, protocol: TLS }}\nroutes:\n"
            );
            (0..tenants).try_for_each(|tenant| {
                write!(
                    text,
                    "  - name: tenant-{tenant}\n    listeners: [shared]\n    hostnames: [\"{}\"]\n    backends:\n      \
                     - {{ address: \"{address}\", port: {}, weight: 1 }}\n",
                    host_name(tenant),
                    server(tenant)
                )
            })
        }
    };
    written.expect("a string takes everything");
    if format == Format::Json {
        text += "\n]}\n";
    }
    text
}

/// Starts the daemon in a rig for this many tenants: `build`, or the build under test if `None`.
pub(super) fn start(rig: &Rig, tenants: u32, build: Option<&Path>) -> Result<Daemon> {
    start_build(build, &rig.node, &text(tenants, rig.count, Format::Json, None))
}

/// Starts the daemon of the build under test with this file.
pub(crate) fn start_with(node: &Namespace, text: &str) -> Result<Daemon> {
    start_build(None, node, text)
}

fn start_build(build: Option<&Path>, node: &Namespace, text: &str) -> Result<Daemon> {
    let mut daemon = Daemon::prepare(node, &Config::empty(), &[])?;
    if let Some(build) = build {
        daemon.use_binary(build);
    }
    daemon.write_config(text)?;
    daemon.launch(node)?;
    Ok(daemon)
}
