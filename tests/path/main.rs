//! Real sockets across network namespaces, one file per story.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests too: a panic with its location is the report"
)]

mod scene;
mod open;
mod pod;

mod by_name;
mod foreign_servers;
mod split_hello;
mod bulk;
mod big_tcp;
mod loss;
mod churn;
mod tcp_listener;
mod announced;
mod half_close;
mod held;
mod idle;
mod keep_alive;
mod reset;
mod aborted;
mod stranger;
mod many;
mod reload;
mod listener_ids;
mod backend_down;
mod traffic;
mod life_cycle;
mod upgrade;
mod drain;
mod doctor;
mod link;
mod busy;
mod neighbour;
mod tls_features;
mod limits;
mod crowd;
mod flood;
mod front;
mod full;
mod full_order;
mod drift;
mod source_ranges;
mod removed;
mod behind;
mod affinity;
mod local;
mod node_clients;
mod reconnect;
mod veth_backend;
mod own_port;
mod masquerade;
mod pmtu;
mod ip_options;
mod trace;
