//! One file, one stage, in the order a packet meets them. No stage calls another; `path` does.

pub(crate) mod parse;
pub(crate) mod checksum;
pub(crate) mod classify;
pub(crate) mod options;
pub(crate) mod syn;
pub(crate) mod hello;
pub(crate) mod stash;
pub(crate) mod route;
pub(crate) mod pick;
pub(crate) mod half_open;
pub(crate) mod connect;
pub(crate) mod forward;
pub(crate) mod close;
pub(crate) mod icmp;
pub(crate) mod emit;
pub(crate) mod tell;
pub(crate) mod expire;
