//! The demonstration: what a user wants to see, step by step.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, server_name, tenant_name, vip};
use tests::clients::{self, Kind, User};
use tests::config::Config;
use tests::daemon::Daemon;
use tests::hello::hello;
use tests::raw::{self, End};
use tests::tls::{self, ClientStream};
use tests::topology::{Lab, Options};

use crate::failed;
use crate::table::Table;

/// A lab with Vestibule in it. Fields drop in order: the daemon first.
#[derive(Debug)]
pub(crate) struct Show {
    pub(crate) daemon: Daemon,
    pub(crate) users: Vec<User>,
    pub(crate) config: Config,
    pub(crate) lab: Lab,
}

/// Runs the demonstration and cleans up the machine afterwards.
pub(crate) fn once() -> ExitCode {
    match run(None, true) {
        Ok(show) => {
            drop(show);
            println!("\nAll steps passed; the lab is taken apart and the machine as it was.");
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

/// Creates the lab and, if requested, runs the demonstration in it. A failure is reported before this
/// returns.
pub(crate) fn run(name: Option<&str>, demonstrate: bool) -> Result<Show, ExitCode> {
    let mut table = Table::new();
    let result = begin(&mut table, name).and_then(|mut show| {
        if demonstrate {
            steps(&mut table, &mut show)?;
        }
        Ok(show)
    });
    result.map_err(|error| {
        eprintln!("\nstep {} failed: {}", table.number(), table.what);
        failed(&format!("{error:#}"), remedy(table.number()))
    })
}

fn remedy(step: u32) -> &'static str {
    match step {
        1 => "`cargo xtask lab --stop` if a lab is running; in a container, run it privileged",
        2 => {
            "see the daemon's output above; `cargo xtask test packet` shows whether this kernel takes the programs"
        }
        _ => "`cargo xtask lab`, then look with `vestibule reasons`, which counts why packets were refused",
    }
}

fn begin(table: &mut Table, name: Option<&str>) -> Result<Show> {
    let options = Options { name: name.map(str::to_owned), ..Options::default() };
    let (lab, users) = table.step("lab: client, balancer, 3 tenants x 2 backends, a CA each", || {
        let lab = Lab::with(&options)?;
        let users: Result<Vec<_>> = lab.tenants.iter().map(|t| User::new(&t.authority, "alice")).collect();
        Ok(((lab, users?), "namespaces linked, TLS servers listening".into()))
    })?;
    let config = Config::lab();
    let daemon = table.step("vestibule run --config FILE", || {
        let daemon = lab.vestibule(&config)?;
        Ok((daemon, "READY: pinned programs serve the VIP".into()))
    })?;
    Ok(Show { daemon, users, config, lab })
}

fn steps(table: &mut Table, show: &mut Show) -> Result<()> {
    by_name(table, show)?;
    strangers(table, show)?;
    with_certificate(table, show)?;
    refused(table, show)?;
    hot_change(table, show)?;
    without_daemon(table, show)
}

fn family_name(family: Family) -> &'static str {
    if family.is_v4() { "IPv4" } else { "IPv6" }
}

/// The client's name in the table.
fn program(kind: Kind) -> &'static str {
    match kind {
        Kind::Curl => "curl",
        Kind::Openssl => "openssl s_client",
        Kind::Python => "python ssl",
        Kind::Rustls => "rustls",
    }
}

fn by_name(table: &mut Table, show: &Show) -> Result<()> {
    for tenant in 0..3 {
        for family in FAMILIES {
            for kind in [Kind::Curl, Kind::Openssl] {
                let name = server_name(tenant);
                let what = format!("{} {name}, {}", program(kind), family_name(family));
                table.step(&what, || {
                    let to = show.lab.vip(family, TLS_PORT);
                    let said = show.users[tenant].ask(kind, &show.lab.client, to, &name, false)?;
                    let server = said.split(' ').next().unwrap_or_default();
                    ensure!(server.starts_with(tenant_name(tenant)), "answered by {server}");
                    Ok(((), format!("{server}; certificate of {}'s CA", tenant_name(tenant))))
                })?;
            }
        }
    }
    Ok(())
}

fn strangers(table: &mut Table, show: &Show) -> Result<()> {
    table.step("curl of tenant-a's user to tenant-b's name", || {
        let to = show.lab.vip(Family::V4, TLS_PORT);
        match show.users[0].ask(Kind::Curl, &show.lab.client, to, &server_name(1), false) {
            Ok(said) => bail!("tenant-a's user trusts only tenant-a's CA, yet was answered by {said}"),
            Err(_) => Ok(((), "tenant-b's certificate: not of tenant-a's CA".into())),
        }
    })
}

fn with_certificate(table: &mut Table, show: &Show) -> Result<()> {
    for (kind, family) in [(Kind::Curl, Family::V4), (Kind::Openssl, Family::V6)] {
        let what = format!("{} with alice's certificate (mTLS), {}", program(kind), family_name(family));
        table.step(&what, || {
            let to = show.lab.vip(family, TLS_PORT);
            let said = show.users[1].ask(kind, &show.lab.client, to, &server_name(1), true)?;
            ensure!(said.ends_with(" alice"), "the server saw no certificate of alice: {said}");
            Ok(((), format!("{} sees client alice", said.split(' ').next().unwrap_or_default())))
        })?;
    }
    Ok(())
}

fn refused(table: &mut Table, show: &Show) -> Result<()> {
    for family in FAMILIES {
        table.step(&format!("unknown name nobody.example.org, {}", family_name(family)), || {
            let hello = hello().name("nobody.example.org").bytes();
            let to = show.lab.vip(family, TLS_PORT);
            let (end, after) = show.lab.client.run(|| raw::refused(to, &hello, Duration::from_secs(5)))?;
            ensure!(end == End::Reset, "not refused: {end:?}");
            Ok(((), format!("refused by RST {:.1} ms after the hello", after.as_secs_f64() * 1000.0)))
        })?;
    }
    Ok(())
}

fn connect(show: &Show, tenant: usize) -> Result<ClientStream> {
    let to = show.lab.vip(Family::V4, TLS_PORT);
    show.lab.client.run(|| tls::connect(to, show.users[tenant].config(), &server_name(tenant)))
}

/// Opens a connection to this backend of tenant c.
fn connection_to(show: &Show, server: &str) -> Result<ClientStream> {
    for _ in 0..100 {
        let mut stream = connect(show, 2)?;
        if clients::ask(&mut stream)?.starts_with(server) {
            return Ok(stream);
        }
    }
    bail!("none of 100 connections reached {server}")
}

fn hot_change(table: &mut Table, show: &mut Show) -> Result<()> {
    let mut open = table.step("a connection to tenant-c is opened and stays open", || {
        let stream = connection_to(show, "tenant-c/0")?;
        Ok((stream, "tenant-c/0".into()))
    })?;
    for backend_of in &mut show.config.route_mut(tenant_name(2)).backends {
        if FAMILIES.map(|family| backend(family, 2, 0)).contains(&backend_of.address) {
            backend_of.weight = 0;
        }
    }
    let shown: &Show = show;
    table.step("the file gives tenant-c/0 weight 0; SIGHUP", || {
        let start = Instant::now();
        shown.daemon.reload(&shown.config)?;
        // The change is in effect when enough connections in a row reach the other backend.
        let mut row = 0;
        while row < 20 {
            ensure!(start.elapsed() < Duration::from_secs(10), "new connections still reach tenant-c/0");
            row = if clients::ask(connect(shown, 2)?)?.starts_with("tenant-c/1") { row + 1 } else { 0 };
        }
        Ok(((), "20 new connections in a row: all tenant-c/1".into()))
    })?;
    table.step("the open connection is asked again", || {
        let said = clients::ask(&mut open).context("the open connection was cut")?;
        ensure!(said.starts_with("tenant-c/0"), "answered by {said}");
        Ok(((), "still tenant-c/0: untouched by the change".into()))
    })
}

fn without_daemon(table: &mut Table, show: &mut Show) -> Result<()> {
    let mut open = connect(show, 0)?;
    table.step("the daemon is killed (SIGKILL)", || {
        show.daemon.end(Signal::SIGKILL)?;
        let old = clients::ask(&mut open).context("the open connection was cut")?;
        let new = clients::ask(connect(show, 1)?).context("no new connection")?;
        let server = |said: &str| said.split(' ').next().unwrap_or_default().to_owned();
        Ok(((), format!("open {} and new {} go on", server(&old), server(&new))))
    })?;
    table.step("the daemon starts again on what is pinned", || {
        show.daemon.launch(&show.lab.balancer)?;
        let said = clients::ask(&mut open).context("the open connection was cut")?;
        Ok(((), format!("open {} goes on", said.split(' ').next().unwrap_or_default())))
    })
}

/// Returns commands to try in a lab that is left running.
pub(crate) fn hints(show: &Show) -> Result<String> {
    let binary = tests::daemon::binary()?;
    let client = show.lab.client.path();
    let (binary, client) = (binary.display(), client.display());
    let (pins, config) = (show.daemon.pins().display(), show.daemon.config_path());
    let authority = show.users[0].files().authority.display();
    let (v4, v6) = (vip(Family::V4), vip(Family::V6));
    let name = server_name(0);
    Ok(format!(
        "
The lab is running. To play with it:

  nsenter --net={client} curl --cacert {authority} --connect-to ::{v4}:443 https://{name}/
  nsenter --net={client} curl --cacert {authority} --connect-to '::[{v6}]:443' https://{name}/
  {binary} --pins {pins} routes      # or: backends, flows, reasons
  {binary} --pins {pins} explain --name {name}
  $EDITOR {}      # in force as soon as it is saved

To end it: cargo xtask lab --stop",
        config.display()
    ))
}
