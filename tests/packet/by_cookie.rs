//! TCP listeners under many SYNs: a SYN is answered by a cookie, and the backend is dialled at the client's ACK.

use common::maps::backend::BACKEND_UNREACHABLE;
use common::maps::event::Expiry;
use common::maps::flow::{FLOW_BACKEND_ON_TRIAL, FLOW_ESTABLISHED, FLOW_RESET, PENDING_CONNECTING};
use common::maps::listener::{self, Listener, PROTOCOL_TCP};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, vip};
use tests::fill::default_settings;
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::{
    assert_dropped, assert_emitted, assert_handed_on, assert_sent, flow_order, order, reset_of, sent,
};
use crate::connect::expected_syn;
use crate::half_open::{TCP_PORT, at_client, caller, from_client, half_open, knock, tcp};
use crate::open::Open;
use crate::renew::NEXT_ISN;
use crate::scene::{BACKEND_ISN, BACKEND_TIME, Backend, Client, Dial, ISN, Offer, behind};
use crate::setup::{backend_id, flag_backend, nats, route_counts};

/// Half-open connections with which a listener has a sixteenth of [`Sizes::default`]'s 256 slots.
const SIXTEENTH: u16 = 16;

/// Counts of half-open connections: all of them, and those of listener 2.
pub(crate) fn counts(programs: &Programs) -> (u32, u32) {
    let cursors: Cursors = programs.element(name::CURSORS, 0);
    (cursors.half_opens, programs.element(name::HALF_OPEN_COUNT, 2))
}

/// Lets no half-open connection count.
pub(crate) fn clear_counts(programs: &mut Programs) {
    let cursors: Cursors = programs.element(name::CURSORS, 0);
    programs.set(name::CURSORS, 0, Cursors { half_opens: 0, ..cursors });
    programs.set(name::HALF_OPEN_COUNT, 2, 0u32);
}

/// Lets listener 2 count as crowded: a flood of SYNs in one write.
pub(crate) fn crowd(programs: &mut Programs) {
    programs.set(name::HALF_OPEN_COUNT, 2, u32::from(SIXTEENTH));
}

/// Returns the client's ACK of the SYN-ACK.
fn ack(client: Client) -> Segment {
    client.at(0)
}

/// Dials at the client's ACK, which may bring data.
#[track_caller]
pub(crate) fn dialled(programs: &mut Programs, client: Client, data: &[u8]) -> Backend {
    let outcome = client.give(programs, &ack(client).payload(data));
    assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    let backend = Backend::of(&sent(&outcome));
    assert_sent(&outcome, Reason::ConnectSyn, &expected_syn(backend));
    backend
}

/// A flood used to evict every half-open connection, and to reach the backend.
#[test]
fn a_listener_with_a_sixteenth_of_all_places_answers_by_cookie_and_others_pass_syns_on() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    let other = TCP_PORT + 1;
    for family in FAMILIES {
        let record =
            Listener { id: 3, route: 1, mss: 1_440, policy: 0, protocol: PROTOCOL_TCP, reserved: [0; 3] };
        programs.listener(vip(family), other, record);
        for port in 0..SIXTEENTH {
            knock(&mut programs, caller(family).port(50_000 + port));
        }
        assert_eq!(counts(&programs), (16, 16));
        let before = nats(&programs);
        for port in 0..3 {
            caller(family).port(40_000 + port).shake(&mut programs);
        }
        assert_eq!(nats(&programs), before, "nothing is stored, and the backend receives nothing");
        // A SYN that was passed on before is passed on when it comes again.
        knock(&mut programs, caller(family).port(50_000));
        knock(&mut programs, caller(family).to_port(other));
        // The record that ends gives back its slot.
        programs.expire(&order(caller(family).port(50_001).tuple(), Reason::ExpireHalfOpen));
        assert_eq!(counts(&programs), (16, 15));
        knock(&mut programs, caller(family).port(50_001));
        assert_eq!(counts(&programs), (17, 16));
        for port in 0..SIXTEENTH {
            programs.expire(&order(caller(family).port(50_000 + port).tuple(), Reason::ExpireHalfOpen));
        }
        programs.expire(&order(caller(family).to_port(other).tuple(), Reason::ExpireHalfOpen));
        assert_eq!((counts(&programs), nats(&programs)), ((0, 0), vec![]));
    }
}

#[test]
fn with_half_of_all_places_taken_every_listener_answers_by_cookie() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    let half = |programs: &mut Programs, taken| {
        let cursors: Cursors = programs.element(name::CURSORS, 0);
        programs.set(name::CURSORS, 0, Cursors { half_opens: taken, ..cursors });
    };
    for family in FAMILIES {
        half(&mut programs, 127);
        knock(&mut programs, caller(family));
        assert_eq!(counts(&programs).0, 128);
        caller(family).port(40_001).shake(&mut programs);
        programs.expire(&order(caller(family).tuple(), Reason::ExpireHalfOpen));
    }
    // Without any slot, too.
    half(&mut programs, 0);
    programs.settings(Settings { half_opens: 0, ..default_settings(Sizes::default()) });
    for family in FAMILIES {
        caller(family).shake(&mut programs);
    }
}

/// Every slot that is looked at is taken, though fewer than half of all are.
#[test]
fn a_syn_that_finds_no_slot_is_answered_by_cookie() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes { hellos: 4, ..Sizes::default() }, 1);
    for family in FAMILIES {
        let places = 4;
        for port in 0..places {
            clear_counts(&mut programs);
            knock(&mut programs, caller(family).port(50_000 + port));
        }
        clear_counts(&mut programs);
        let before = nats(&programs);
        let client = caller(family).shake(&mut programs);
        assert_eq!(nats(&programs), before, "the port that was claimed is free");
        clear_counts(&mut programs);
        dialled(&mut programs, client, b"");
        crate::setup::forget_all(&mut programs);
    }
}

/// The server speaks first: the client's ACK is all there is.
#[test]
fn the_bare_ack_dials_and_the_servers_first_bytes_pass() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    crowd(&mut programs);
    for family in FAMILIES {
        for (port, offer) in (40_000..).zip([Offer::linux(1_440, 7), Offer::plain(1_220)]) {
            let dial = caller(family).port(port).offer(offer);
            let client = dial.shake(&mut programs);
            let outcome = client.give(&mut programs, &ack(client));
            assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
            let mut backend = Backend::of(&sent(&outcome));
            // The client's ACK comes again, in answer to a second SYN-ACK: one connection is enough.
            assert_dropped(&client.give(&mut programs, &ack(client)), Reason::SynAcked);
            let outcome = backend.give(&mut programs, &backend.syn_ack());
            assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
            let answer = sent(&outcome);
            assert_eq!((answer.flags, answer.payload.len()), (flag::ACK, 0));
            assert_eq!((answer.seq, answer.ack), (behind(ISN, 0), behind(BACKEND_ISN, 0)));
            let flow = client.flow(&programs).expect("it is open");
            assert_eq!((flow.connection.state, client.waiting(&programs)), (FLOW_ESTABLISHED, None));
            backend.timestamps = offer.timestamps;
            let open = Open {
                client,
                backend,
                offer: if offer.timestamps { Offer::linux(1_460, 9) } else { Offer::plain(1_460) },
                clock: flow.ts_delta,
            };
            open.pass_to_client(&mut programs, &open.backend_segment(0, 0).payload(*b"220 ready"));
            open.pass_to_backend(&mut programs, &open.client_segment(0, 9).payload(*b"HELO"));
        }
    }
    assert_eq!(route_counts(&programs), (4, 0, 0));
}

/// The client speaks first: what it says until the backend answers is kept, and delivered in order.
#[test]
fn what_the_client_says_is_delivered_once_the_backend_answers() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    crowd(&mut programs);
    for family in FAMILIES {
        for (port, with_the_ack) in [(40_000, true), (40_001, false)] {
            let client = caller(family).port(port).shake(&mut programs);
            let backend = match with_the_ack {
                true => dialled(&mut programs, client, b"no TLS, any bytes; "),
                false => {
                    let backend = dialled(&mut programs, client, b"");
                    let outcome = client.send(&mut programs, 0, b"no TLS, any bytes; ");
                    assert_dropped(&outcome, Reason::HelloBuffered);
                    backend
                }
            };
            assert_dropped(&client.send(&mut programs, 19, b"and more"), Reason::HelloBuffered);
            // The client's retransmission is the clock, as on a TLS listener.
            let outcome = client.send(&mut programs, 0, b"no TLS, any bytes; ");
            assert_sent(&outcome, Reason::ConnectAgain, &expected_syn(backend));
            let delivered = sent(&backend.accept(&mut programs));
            assert_eq!(delivered.payload, b"no TLS, any bytes; and more");
            crate::setup::forget_all(&mut programs);
            crowd(&mut programs);
        }
    }
}

/// Nobody repeats anything while a client waits for the server: the daemon has the SYN sent again, and the next backend's.
#[test]
fn the_daemon_has_the_syn_sent_again() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    crowd(&mut programs);
    for family in FAMILIES {
        let client = caller(family).shake(&mut programs);
        let first = dialled(&mut programs, client, b"");
        let waiting = client.waiting(&programs).expect("it waits");
        assert_eq!((waiting.connection.state, waiting.have), (PENDING_CONNECTING, 0));
        let again = Expiry {
            generation: waiting.connection.generation,
            ..order(client.dial.tuple(), Reason::ConnectAgain)
        };
        let other = Expiry { generation: again.generation + 1, ..again };
        assert_eq!(programs.expire(&other).verdict, 1, "another connection is not meant");
        let outcome = programs.expire(&again);
        assert_eq!((outcome.verdict, outcome.counted.as_slice()), (0, &[(Reason::ConnectAgain, 1)][..]));
        assert_emitted(&outcome, &[(Device::Backend, expected_syn(first))]);
        let outcome = programs.expire(&again);
        assert_eq!(outcome.counted, [(Reason::ConnectNext, 1)]);
        let next = Backend::of(&Segment::parse(&outcome.emitted[0].1).expect("a SYN"));
        assert_ne!(next.address, first.address);
        assert_emitted(&outcome, &[(Device::Backend, expected_syn(next))]);
        assert_eq!(nats(&programs), [(next.tuple(), client.dial.tuple())]);
        let outcome = next.give(&mut programs, &next.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
        // It is open: the daemon was late.
        assert_eq!(programs.expire(&again).verdict, 1);
        crate::setup::forget_all(&mut programs);
        crowd(&mut programs);
    }
}

/// The client's ACK was lost, and it waits for the server: its keep-alive proves the same.
#[test]
fn a_keep_alive_dials_where_the_ack_was_lost() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        crowd(&mut programs);
        let client = caller(family).shake(&mut programs);
        let keep_alive = ack(client).seq(ISN);
        let garbage = client.give(&mut programs, &keep_alive.clone().payload([0]));
        assert_eq!(garbage.counted, [(Reason::SynKeepAlive, 1)], "its byte is not data");
        let outcome = client.give(&mut programs, &keep_alive);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let backend = Backend::of(&sent(&outcome));
        assert_sent(&outcome, Reason::ConnectSyn, &expected_syn(backend));
        assert_eq!(sent(&backend.accept(&mut programs)).seq, behind(ISN, 0));
        crate::setup::forget_all(&mut programs);
    }
}

/// A connection whose client said nothing has no bytes, but a slot: a crowd of them must not keep out others.
#[test]
fn connections_without_a_byte_are_evicted_like_others() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes { hellos: 4, ..Sizes::default() }, 1);
        programs.settings(Settings {
            half_opens: 0,
            ..default_settings(Sizes { hellos: 4, ..Sizes::default() })
        });
        for port in 0..4 {
            let client = caller(family).port(50_000 + port).shake(&mut programs);
            dialled(&mut programs, client, b"");
        }
        let buffered = programs.element::<Cursors>(name::CURSORS, 0).buffered;
        assert_eq!(buffered, 4);
        let client = crate::scene::dial(family).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &crate::scene::usual_hello());
        assert_eq!(outcome.counted, [(Reason::HelloEvicted, 1), (Reason::ConnectSyn, 1)]);
        // One past its time limit is evicted first.
        let settings = default_settings(Sizes { hellos: 4, ..Sizes::default() });
        programs.settings(Settings { half_opens: 0, hello_timeout_ns: 1_000, ..settings });
        std::thread::sleep(std::time::Duration::from_millis(2));
        let client = crate::scene::dial(family).port(40_001).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &crate::scene::usual_hello());
        assert_eq!(outcome.counted, [(Reason::HelloEvicted, 1), (Reason::ConnectSyn, 1)]);
    }
}

/// The client repeats its SYN: it may be moved on as often again.
#[test]
fn a_repeated_syn_moves_on_past_a_run_of_old_connections() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let mut backend = knock(&mut programs, dial);
        for _ in 0..3 {
            for _ in 0..3 {
                let outcome = backend.give(&mut programs, &old_answers(backend)[0]);
                assert_eq!(outcome.counted, [(Reason::ConnectOld, 1)]);
                backend = Backend::of(&sent(&outcome));
            }
            assert_eq!(knock(&mut programs, dial), backend);
        }
        crate::setup::forget_all(&mut programs);
    }
}

/// The RST of a client whose data was not all kept is challenged, but a client that is gone answers nothing. Its flow, in which
/// the backend waits for it to go on, was held until `idleTimeout`.
#[test]
fn a_client_that_is_gone_after_its_rst_was_challenged_is_asked_once_the_flow_is_open() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        for answers in [false, true] {
            crowd(&mut programs);
            let client = caller(family).shake(&mut programs);
            let backend = dialled(&mut programs, client, b"");
            // Its first segment was lost.
            assert_dropped(&client.send(&mut programs, 100, &[1; 100]), Reason::HelloBeyond);
            let outcome = client.give(&mut programs, &client.at(200).rst());
            assert_eq!(outcome.counted, [(Reason::HelloChallenged, 1)]);
            backend.accept(&mut programs);
            assert_eq!(programs.trials(), [client.dial.tuple()], "the daemon learns of it");
            let connection = client.flow(&programs).expect("a RST there ends nothing").connection;
            assert_eq!((connection.state, connection.flags), (FLOW_ESTABLISHED, FLOW_BACKEND_ON_TRIAL));
            let probe = flow_order(&programs, client.dial.tuple(), Reason::ExpireProbe);
            let outcome = programs.expire(&probe);
            assert_eq!(outcome.counted, [(Reason::ExpireProbe, 1)]);
            let [(Device::Client, frame)] = &outcome.emitted[..] else { panic!("{:?}", outcome.emitted) };
            let asked = Segment::parse(frame).expect("a TCP segment");
            assert_eq!((asked.flags, asked.seq, asked.ack), (flag::ACK, client.cookie, behind(ISN, 0)));
            let silence = Expiry { reason: Reason::ExpireTrial as u32, ..probe };
            if answers {
                // The RST was a stranger's.
                let outcome = client.give(&mut programs, &client.at(0));
                assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
                assert_eq!(client.flow(&programs).expect("it goes on").connection.flags, 0);
                assert_eq!(programs.expire(&silence).verdict, 1);
            } else {
                let outcome = programs.expire(&silence);
                assert_eq!(
                    (&outcome.counted[..], outcome.emitted.len()),
                    (&[(Reason::ExpireTrial, 1)][..], 2)
                );
                assert_eq!(client.flow(&programs).expect("it lingers").connection.state, FLOW_RESET);
            }
            crate::setup::forget_all(&mut programs);
        }
    }
}

#[test]
fn when_every_backend_refuses_the_client_is_reset() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    crowd(&mut programs);
    for family in FAMILIES {
        let client = caller(family).shake(&mut programs);
        let backend = dialled(&mut programs, client, b"");
        let outcome = backend.refuse(&mut programs);
        assert_sent(&outcome, Reason::ConnectExhausted, &client.refusal());
        assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![]));
    }
}

/// A SYN may be forged. It used to end the half-open connection with the same addresses and ports.
#[test]
fn another_syn_does_not_end_a_half_open_connection_but_its_cookie_does() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        let outcome = programs.ingress(Device::Client, &dial.syn().seq(NEXT_ISN).bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let client = Client { dial, cookie: 0, time: 0 }.told(&sent(&outcome));
        assert_eq!(half_open(&programs, dial).expect("it goes on").isn, ISN);
        // The client starts again, and proves it.
        let proof = ack(client).seq(behind(NEXT_ISN, 0));
        let outcome = client.give(&mut programs, &proof);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let anew = Backend::of(&sent(&outcome));
        assert_eq!((half_open(&programs, dial), backend.owner(&programs)), (None, None));
        assert_eq!(nats(&programs), [(anew.tuple(), dial.tuple())]);
        assert_eq!(counts(&programs), (0, 0));
        // Or it was a stranger: the first connection opens.
        crate::setup::forget_all(&mut programs);
        let backend = knock(&mut programs, dial);
        programs.ingress(Device::Client, &dial.syn().seq(NEXT_ISN).bytes());
        backend.give(&mut programs, &backend.syn_ack());
        let outcome = programs.ingress(Device::Client, &from_client(dial, 0, 0).bytes());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

/// Nor does it end one that waits for its backend.
#[test]
fn a_syn_does_not_end_a_connection_that_waits_for_its_backend() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        crowd(&mut programs);
        let client = caller(family).shake(&mut programs);
        let backend = dialled(&mut programs, client, b"");
        clear_counts(&mut programs);
        let outcome = programs.ingress(Device::Client, &client.dial.syn().seq(NEXT_ISN).bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)], "and not passed on beside the other");
        assert_eq!(half_open(&programs, client.dial), None);
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ConnectHello, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

/// It was refused when no backend could be picked for it, though the connection has its own.
#[test]
fn a_syn_of_a_connection_that_waits_for_its_backend_needs_no_other_backend() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        crowd(&mut programs);
        let client = caller(family).shake(&mut programs);
        dialled(&mut programs, client, b"");
        clear_counts(&mut programs);
        flag_backend(&mut programs, backend_id(family, 0), BACKEND_UNREACHABLE);
        let outcome = programs.ingress(Device::Client, &client.dial.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        flag_backend(&mut programs, backend_id(family, 0), 0);
        crate::setup::forget_all(&mut programs);
    }
}

#[test]
fn a_segment_without_a_cookie_of_ours_is_answered_with_rst() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    crowd(&mut programs);
    for family in FAMILIES {
        let client = caller(family).shake(&mut programs);
        let wrong = ack(client).ack(client.wrong_ack());
        assert_sent(&client.give(&mut programs, &wrong), Reason::SynCookieMismatch, &reset_of(&wrong));
        // A later segment of this handshake: the client repeats the first one.
        let later = client.at(1_000).payload(*b"later");
        assert_dropped(&client.give(&mut programs, &later), Reason::SynEarly);
        assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![]));
    }
}

/// Draining refuses SYNs, but no handshake that has started.
#[test]
fn a_handshake_that_began_before_the_drain_goes_on() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    crowd(&mut programs);
    for family in FAMILIES {
        let client = caller(family).shake(&mut programs);
        programs.set(name::DRAIN, 0, 1u32);
        dialled(&mut programs, client, b"");
        let syn = client.dial.port(40_009).syn();
        let outcome = programs.ingress(Device::Client, &syn.bytes());
        assert_sent(&outcome, Reason::SynDraining, &reset_of(&syn));
        programs.set(name::DRAIN, 0, 0u32);
        crate::setup::forget_all(&mut programs);
        crowd(&mut programs);
    }
}

/// A client that starts again on an open flow's ports: the ACK with the cookie ends the old connection and dials.
#[test]
fn the_bare_ack_on_an_open_flow_resets_the_old_backend_and_dials() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let old = crate::half_open::opened(&mut programs, dial);
        crowd(&mut programs);
        let client = Client { dial, cookie: BACKEND_ISN, time: BACKEND_TIME };
        let open = Open { client, backend: old, offer: Offer::plain(0), clock: 0 };
        let syn = dial.syn().seq(NEXT_ISN);
        assert_eq!(client.give(&mut programs, &syn).counted, [(Reason::SynChallenged, 1)]);
        open.age_syn(&mut programs);
        let outcome = client.give(&mut programs, &syn);
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let client = client.told(&sent(&outcome));
        let outcome = client.give(&mut programs, &ack(client).seq(behind(NEXT_ISN, 0)));
        assert_eq!(
            outcome.counted,
            [(Reason::SynOldReset, 1), (Reason::SynFlowReplaced, 1), (Reason::ConnectSyn, 1)]
        );
        let backend = Backend::of(&sent(&outcome));
        let rst = old.to_backend().rst().seq(behind(ISN, 0)).window(0);
        assert_emitted(&outcome, &[(Device::Backend, rst)]);
        assert_eq!(nats(&programs), [(backend.tuple(), dial.tuple())]);
        crate::setup::forget_all(&mut programs);
        clear_counts(&mut programs);
    }
}

/// Answers the SYN as an old connection on the same port would: in TIME_WAIT, or one whose end the backend missed.
fn old_answers(backend: Backend) -> [Segment; 2] {
    let ack = backend.segment().seq(77).ack(behind(ISN, 50_000)).window(500);
    [ack.clone(), ack.flags(flag::SYN | flag::ACK)]
}

/// The client answered it with RST, which we drop, so the connection hung for 15 s.
#[test]
fn an_answer_of_an_old_connection_ends_here_and_the_syn_goes_again_from_another_port() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        for (port, offer) in (40_000..).zip([Offer::linux(8_960, 7), Offer::plain(536), NONE]) {
            for which in 0..2 {
                let dial = caller(family).port(port).offer(offer);
                let old = knock(&mut programs, dial);
                let outcome = old.give(&mut programs, &old_answers(old)[which]);
                assert_eq!(outcome.counted, [(Reason::ConnectOld, 1)]);
                let again = sent(&outcome);
                let anew = Backend::of(&again);
                assert_ne!(anew.source.port(), old.source.port());
                assert_eq!(anew.address, old.address);
                assert_eq!((again.seq, again.window), (ISN, dial.syn().window));
                assert_offers(&again, family, offer);
                assert_eq!(nats(&programs), [(anew.tuple(), dial.tuple())]);
                let answer = anew.syn_ack();
                let outcome = anew.give(&mut programs, &answer);
                assert_sent(&outcome, Reason::ForwardClient, &at_client(dial, &answer));
                let outcome = programs.ingress(Device::Client, &from_client(dial, 0, 0).bytes());
                assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
                crate::setup::forget_all(&mut programs);
            }
        }
    }
}

/// A client that announces nothing, not even its MSS.
const NONE: Offer = Offer { mss: None, sack: false, timestamps: false, scale: None };

/// Asserts that the SYN offers the client's options.
#[track_caller]
fn assert_offers(syn: &Segment, family: Family, offer: Offer) {
    use tests::tcp_option::TcpOption;
    let default = if family.is_v4() { 536 } else { 1_220 };
    let has = |wanted: &dyn Fn(&TcpOption) -> bool| syn.options.iter().any(wanted);
    let mss = offer.mss.unwrap_or(default);
    assert!(has(&|option| *option == TcpOption::Mss(mss)), "{syn:?}");
    assert_eq!(has(&|option| *option == TcpOption::SackPermitted), offer.sack);
    assert_eq!(has(&|option| matches!(option, TcpOption::Timestamps(..))), offer.timestamps);
    let scale = offer.scale;
    assert_eq!(
        scale.is_some(),
        has(&|option| scale.is_some_and(|scale| *option == TcpOption::WindowScale(scale)))
    );
}

/// Forged answers move the connection three times, and no further.
#[test]
fn forged_answers_of_old_connections_use_up_three_ports() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let mut backend = knock(&mut programs, dial);
        for _ in 0..3 {
            let outcome = backend.give(&mut programs, &old_answers(backend)[0]);
            assert_eq!(outcome.counted, [(Reason::ConnectOld, 1)]);
            backend = Backend::of(&sent(&outcome));
        }
        for _ in 0..3 {
            let more = old_answers(backend)[0].clone();
            assert_handed_on(&backend.give(&mut programs, &more), &more.bytes(), Reason::ConnectStray);
        }
        assert_eq!(nats(&programs), [(backend.tuple(), dial.tuple())]);
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

/// Of two SYNs the second may arrive first, and the backend answers the other one by a bare acknowledgement. We took it for an
/// old connection's and moved to another port. The client, to which it would be passed, answers it with RST.
#[test]
fn a_bare_acknowledgement_of_the_syn_changes_nothing() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        let late = backend.at(1, 0);
        assert_dropped(&backend.give(&mut programs, &late), Reason::ConnectIgnored);
        assert_dropped(&backend.give(&mut programs, &late.payload(*b"early")), Reason::ConnectIgnored);
        assert_eq!(nats(&programs), [(backend.tuple(), dial.tuple())]);
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

/// While the daemon is dead nobody else removes them, and the listener would answer by cookies for ever.
#[test]
fn connections_past_their_time_limit_are_reclaimed_while_syns_are_answered_by_cookie() {
    tests::skip_without_root!();
    let sizes = Sizes { hellos: 64, ..Sizes::default() };
    for family in FAMILIES {
        let mut programs = tcp(sizes, 1);
        for port in 0..4 {
            knock(&mut programs, caller(family).port(50_000 + port));
        }
        caller(family).shake(&mut programs);
        // Slots have seconds only.
        programs.settings(Settings { hello_timeout_ns: 1_000_000, ..default_settings(sizes) });
        std::thread::sleep(std::time::Duration::from_millis(2_010));
        let mut answered = 0;
        while programs.ingress(Device::Client, &caller(family).syn().bytes()).counted
            == [(Reason::SynAnswered, 1)]
        {
            answered += 1;
            assert!(answered < 10_000, "{:?}", counts(&programs));
        }
        assert!(half_open(&programs, caller(family)).is_some());
    }
}

#[test]
fn every_listener_id_has_its_count() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    let last = listener::IDS as u32 - 1;
    let dial: Dial = caller(Family::V4);
    programs.listener(
        vip(Family::V4),
        TCP_PORT,
        Listener { id: last, route: 1, mss: 1_460, policy: 0, protocol: PROTOCOL_TCP, reserved: [0; 3] },
    );
    knock(&mut programs, dial);
    assert_eq!(programs.element::<u32>(name::HALF_OPEN_COUNT, last), 1);
}
