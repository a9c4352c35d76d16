//! Packet in, verdict, packet and counters out: every stage and every reason, by BPF_PROG_TEST_RUN.

mod scene;
mod check;
mod load;
mod reasons;
mod parse;
mod checksum;
mod setup;
mod classify;
mod syn;
mod route;
mod pick;
mod connect;
mod ports;
mod hello;
mod delivery;
mod owed;
mod stash;
mod open;
mod forward;
mod end;
mod renew;
mod half_open;
mod half_open_refused;
mod expire;
mod drain;
mod emit;
