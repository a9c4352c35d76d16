//! What happens to one packet: the entry points, the panic handler, and a `main` so that the host can build
//! and lint the crate.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    feature(core_intrinsics),
    expect(internal_features, reason = "two atomic instructions, see atomic.rs")
)]
#![cfg_attr(not(target_arch = "bpf"), expect(dead_code, reason = "on the host nothing calls the programs"))]

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::tcx_action_base::TCX_NEXT;
use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

mod kernel;
mod packet;
mod scratch;
mod atomic;
mod trie_key;
mod maps;
mod verified;
mod exit;
mod segment;
mod buffer;
mod connection;
mod delivery;
mod stage;
mod path;
mod trace;

use common::maps::event::{EXPIRE_BUSY, EXPIRE_NOTHING};
use common::reason::Reason;
use kernel::{Context, Skb, Xdp};

/// Runs for every packet: attached by TCX to the ingress of each device concerned.
#[classifier]
pub(crate) fn ingress(ctx: TcContext) -> i32 {
    let Some(scratch) = maps::scratch(0) else { return TCX_NEXT };
    if !scratch.enter() {
        return exit::leave(exit::Exit::drop(Reason::ParseBusy));
    }
    let skb = Skb::of(ctx.as_ptr().cast());
    scratch.exit = path::run(skb, scratch).number();
    // Read back, because the verifier would follow each known exit to the end; what it reads from memory it does not know.
    let exit = path::turned_back(&scratch.received, exit::Exit::from_number(atomic::read_now(&scratch.exit)));
    if trace::is_on() {
        trace::log(skb, &mut scratch.received, exit.number());
    }
    let code = exit::leave(exit);
    scratch.leave();
    code
}

/// Runs for every frame of the devices where the operator wants it, before the kernel makes a packet of it.
#[xdp(frags)]
pub(crate) fn front(ctx: XdpContext) -> u32 {
    let frame = Xdp::of(ctx.ctx);
    let Some(v4) = path::xdp::glance(frame) else { return XDP_PASS };
    let Some(front) = maps::front(0) else { return XDP_PASS };
    if !front.enter() {
        return XDP_PASS;
    }
    let exit = path::xdp::run(frame, v4, front);
    front.leave();
    exit::leave_xdp(exit)
}

/// Runs only for the daemon (`BPF_PROG_RUN`); not attached anywhere.
#[classifier]
pub(crate) fn expire(ctx: TcContext) -> i32 {
    let Some(scratch) = maps::scratch(0) else { return EXPIRE_NOTHING as i32 };
    if !scratch.enter() {
        return EXPIRE_BUSY as i32;
    }
    let code = path::expire::run(Skb::of(ctx.as_ptr().cast()), scratch);
    scratch.leave();
    code
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// Undefined on purpose: an object that still contains a panic path does not load, and the error names this symbol.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    unsafe extern "C" {
        fn a_panic_path_remains() -> !;
    }
    // SAFETY: never linked; see above.
    unsafe { a_panic_path_remains() }
}

/// The kernel lets only programs with a GPL-compatible license call helpers that are marked GPL-only.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
