//! The whole way in: SYN, cookie, hello, backend's SYN, its answer, the hello delivered.

use common::reason::Reason;
use tests::addresses::{FAMILIES, server_name};
use tests::compare::assert_frame;
use tests::hello::hello;
use tests::packet::flag;
use tests::program::Programs;
use tests::tcp_option::TcpOption;
use tests::world::Device;

use crate::scene::{BACKEND_ISN, BACKEND_TIME, Backend, CLIENT_TIME, ISN, dial, sent, timestamps};

#[test]
fn a_connection_opens_with_the_clients_options() {
    tests::skip_without_root!();
    let mut programs = Programs::load().unwrap();
    programs.tls_with_one_route();
    for family in FAMILIES {
        let hello = hello().name(server_name(0)).length(517).bytes();
        let client = dial(family).shake(&mut programs);

        let outcome = client.send(&mut programs, 0, &hello);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let syn = sent(&outcome);
        let backend = Backend::of(&syn);
        let expected = backend
            .to_backend()
            .syn(ISN)
            .window(64_256)
            .mss(1440)
            .sack_permitted()
            .timestamps(CLIENT_TIME + 1, 0)
            .window_scale(7);
        assert_frame(&outcome.packet, &expected);

        let outcome = programs.ingress(Device::Backend, &backend.syn_ack().bytes());
        assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
        let (_, echo) = timestamps(&sent(&outcome)).unwrap();
        assert_eq!(echo, BACKEND_TIME);
        let expected = backend
            .to_backend()
            .seq(ISN.wrapping_add(1))
            .ack(BACKEND_ISN + 1)
            .flags(flag::PSH)
            .window(502)
            .option(TcpOption::Nop)
            .option(TcpOption::Nop)
            .timestamps(CLIENT_TIME + 1, BACKEND_TIME)
            .payload(hello);
        assert_frame(&outcome.packet, &expected);
    }
}
