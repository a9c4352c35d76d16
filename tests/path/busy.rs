//! A CPU's working memory that is in use when the daemon gives an order (PREEMPT_RT).

use std::time::{Duration, Instant};

use common::maps::event::Expiry;
use common::maps::flow::FLOW_ESTABLISHED;
use common::reason::Reason;
use tests::addresses::{FAMILIES, server_name};
use tests::busy::set_pinned_busy;
use userspace::dataplane::expire::{ExpireError, Expirer};
use userspace::dataplane::pin::Pins;

use crate::open::Open;
use crate::scene::Scene;

/// How long the memory is in use: longer than the first tries last.
const BUSY: Duration = Duration::from_millis(20);

/// The order is repeated until the packet is done, and fails by name when that never happens.
#[test]
fn an_order_is_repeated_while_a_packet_is_handled() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let pins = Pins::new(scene.daemon.pins());
    for family in FAMILIES {
        let mut open = Open::by_name(&scene, family, &server_name(0));
        open.assert_alive();
        scene.lab.balancer.run(|| {
            // Any device of the namespace does: the program itself chooses where to send.
            let expirer = Expirer::open(&pins, 1).unwrap();
            let mut client = None;
            expirer
                .maps()
                .flows
                .walk(|key, flow| {
                    let is_open = flow.connection.state == FLOW_ESTABLISHED;
                    client = is_open.then_some((*key, flow.connection.generation)).or(client);
                })
                .unwrap();
            let (client, generation) = client.expect("the open connection");
            let reason = Reason::ExpireRemoved as u32;
            let order = Expiry { client, seq: 0, reason, generation, seen_secs: 0 };

            set_pinned_busy(pins.folder(), true).unwrap();
            let refused = expirer.run(&order);
            assert!(matches!(refused, Err(ExpireError::Busy)), "{refused:?}");

            let begin = Instant::now();
            let done = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(BUSY);
                    set_pinned_busy(pins.folder(), false).unwrap();
                });
                expirer.run(&order)
            });
            assert!(begin.elapsed() >= BUSY, "the order was given before the memory was free");
            assert!(done.unwrap(), "the connection was there to be ended");
        });
        open.assert_reset(Duration::from_secs(2));
    }
}
