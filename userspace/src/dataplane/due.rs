//! Time limits of connections without a packet.

use common::maps::flow::{
    FLOW_ESTABLISHED, Flow, HalfOpen, PENDING_CONNECTING, PENDING_UNDELIVERED, Pending,
};
use common::maps::settings::Settings;
use common::reason::Reason;

/// Returns why a flow is to be ended, or `None`. `now` is the monotonic clock in seconds.
///
/// A flow with a FIN from both ends has no shorter limit: one of them is unacknowledged, or it would be closed, and may be a stranger's.
/// [`super::held`] has its ends asked.
pub fn flow_is_due(flow: &Flow, now: u32, settings: &Settings) -> Option<Reason> {
    let idle = now.saturating_sub(flow.seen_secs);
    if flow.connection.state != FLOW_ESTABLISHED {
        (idle >= settings.closed_timeout_secs).then_some(Reason::ExpireClosed)
    } else {
        (idle >= settings.idle_timeout_secs).then_some(Reason::ExpireIdle)
    }
}

/// Returns whether a waiting hello reached its time limit. `now` is the monotonic clock in nanoseconds.
pub fn hello_is_due(hello: &Pending, now: u64, settings: &Settings) -> bool {
    // Undelivered bytes belong to a flow, and the flow's time limit applies.
    hello.connection.state != PENDING_UNDELIVERED
        && now.saturating_sub(hello.started_ns) >= settings.hello_timeout_ns
}

/// A SYN is sent again after this time (RFC 6298 section 2.1), in nanoseconds.
const SYN_AGAIN_NS: u64 = 1_000_000_000;

/// Returns whether the SYN of a connection is to be sent again: its client waits for the server to speak, so it repeats
/// nothing that would do it. `now` is in nanoseconds as above.
pub fn syn_is_due(hello: &Pending, now: u64) -> bool {
    hello.connection.state == PENDING_CONNECTING
        && hello.have == 0
        && now.saturating_sub(hello.started_ns) >= SYN_AGAIN_NS
}

/// Returns whether a half-open connection reached its time limit. `now` is in nanoseconds as above.
pub fn half_open_is_due(half_open: &HalfOpen, now: u64, settings: &Settings) -> bool {
    now.saturating_sub(half_open.started_ns) >= settings.hello_timeout_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::flow::{Connection, FLOW_CLOSED, FLOW_RESET, PENDING_COLLECTING};

    fn settings() -> Settings {
        Settings {
            hello_timeout_ns: 10_000_000_000,
            idle_timeout_secs: 300,
            closed_timeout_secs: 5,
            ..Settings::zeroed()
        }
    }

    fn flow(state: u8, client_fin: u8, backend_fin: u8) -> Flow {
        let connection = Connection { state, ..Connection::zeroed() };
        let mut flow = Flow { connection, seen_secs: 1000, ..Flow::zeroed() };
        (flow.client.sent.fin, flow.backend.sent.fin) = (client_fin, backend_fin);
        flow
    }

    #[test]
    fn each_state_of_a_flow_has_its_time_limit() {
        let due = |flow: Flow, now| flow_is_due(&flow, now, &settings());
        let open = flow(FLOW_ESTABLISHED, 1, 0);
        assert_eq!((due(open, 1299), due(open, 1300)), (None, Some(Reason::ExpireIdle)));
        let closing = flow(FLOW_ESTABLISHED, 1, 1);
        assert_eq!((due(closing, 1299), due(closing, 1300)), (None, Some(Reason::ExpireIdle)));
        for state in [FLOW_CLOSED, FLOW_RESET] {
            let closed = flow(state, 0, 0);
            assert_eq!((due(closed, 1004), due(closed, 1005)), (None, Some(Reason::ExpireClosed)));
        }
        assert_eq!(due(open, 10), None, "a packet newer than our clock reading");
    }

    /// Its FINs may be a stranger's. It was ended after twenty minutes without being asked, although both ends had the connection.
    #[test]
    fn a_flow_with_a_fin_of_both_ends_is_left_to_the_question_whether_they_have_it() {
        let settings = Settings { idle_timeout_secs: 25 * 3600, ..settings() };
        let due = |idle: u32| flow_is_due(&flow(FLOW_ESTABLISHED, 1, 1), 1000 + idle, &settings);
        assert_eq!((due(1_200), due(25 * 3600 - 1)), (None, None));
        assert_eq!(due(25 * 3600), Some(Reason::ExpireIdle));
    }

    #[test]
    fn a_hello_is_ended_at_its_limit_but_owed_bytes_are_not() {
        let mut hello = Pending { started_ns: 5, ..Pending::zeroed() };
        hello.connection.state = PENDING_COLLECTING;
        assert!(!hello_is_due(&hello, 10_000_000_004, &settings()));
        assert!(hello_is_due(&hello, 10_000_000_005, &settings()));
        hello.connection.state = PENDING_UNDELIVERED;
        assert!(!hello_is_due(&hello, u64::MAX, &settings()));
    }
}
