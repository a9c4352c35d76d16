//! Traffic that never fails while something happens to the daemon: continuous new connections, and some kept open.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use tests::addresses::{FAMILIES, TLS_PORT, server_name, tenant_name};
use tests::daemon::Daemon;
use tests::hello::hello;
use tests::raw;
use tests::topology::Lab;

use crate::open::Open;
use crate::scene::{Scene, eventually};
use tests::stop::Stop;

/// The number of threads that make connections.
const THREADS: usize = 3;

/// The traffic while a test runs.
pub(crate) struct Traffic<'a> {
    made: &'a AtomicU64,
    kept: &'a mut [Open],
}

impl Traffic<'_> {
    /// Asserts that fifty more new connections reach their tenant, and that the open ones still work.
    #[track_caller]
    pub(crate) fn assert_goes_on(&mut self, when: &str) {
        let wanted = self.made.load(Ordering::Relaxed) + 50;
        let progress = eventually(Duration::from_secs(10), || self.made.load(Ordering::Relaxed) > wanted);
        assert!(progress, "traffic stopped {when}");
        self.kept.iter_mut().for_each(Open::assert_alive);
    }
}

/// Runs `story` under traffic of both families to every tenant. No connection may fail, be reset, or reach
/// another tenant. Nothing is left in the maps afterwards.
pub(crate) fn under_traffic(mut scene: Scene, story: impl FnOnce(&mut Daemon, &Lab, &mut Traffic<'_>)) {
    let (over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut kept: Vec<Open> = Vec::new();
    for family in FAMILIES {
        kept.extend((0..3).map(|tenant| Open::by_name(&scene, family, &server_name(tenant))));
    }
    let Scene { daemon, lab, .. } = &mut scene;
    let lab = &*lab;
    let dial = |number: usize| {
        lab.client.enter();
        let (family, tenant) = (FAMILIES[number % 2], number % 3);
        let bytes = hello().name(server_name(tenant)).bytes();
        while !over.load(Ordering::Relaxed) {
            let name = raw::hello(lab.vip(family, TLS_PORT), &bytes, &[]).context("a new connection")?;
            anyhow::ensure!(name.starts_with(tenant_name(tenant)), "answered by {name}");
            made.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    };
    std::thread::scope(|scope| {
        let dial = &dial;
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || dial(number))).collect();
        let stop = Stop(&over);
        story(daemon, lab, &mut Traffic { made: &made, kept: &mut kept });
        drop(stop);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
    drop(kept);
    scene.assert_nothing_leaks();
}
