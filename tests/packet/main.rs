//! Packet in, verdict, packet and counters out: every stage and every reason, by BPF_PROG_TEST_RUN.

mod scene;
mod load;
mod connect;
