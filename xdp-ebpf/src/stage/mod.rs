//! One file per stage, in the order a packet meets them. A stage never calls another stage; `path` calls them.

pub(crate) mod glance;
pub(crate) mod parse;
pub(crate) mod neighbour;
pub(crate) mod heartbeat;
pub(crate) mod options;
pub(crate) mod checksum;
pub(crate) mod classify;
pub(crate) mod previous;
pub(crate) mod syn;
pub(crate) mod hello;
pub(crate) mod route;
pub(crate) mod admit;
pub(crate) mod pick;
pub(crate) mod connect;
pub(crate) mod fast_open;
pub(crate) mod half_open;
pub(crate) mod forward;
pub(crate) mod icmp;
