//! Programs and filters attached to devices by classic traffic control. They run after TCX programs.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};

use super::netlink::Netlink;

/// Filters of the qdisc `clsact` for what a device received.
pub const INGRESS: &str = "tc/ingress";
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` and `..._EGRESS` (linux/pkt_sched.h); 0 is the qdisc that queues what is sent.
const PARENTS: [(&str, u32); 3] = [(INGRESS, 0xffff_fff2), ("tc/egress", 0xffff_fff3), ("tc/root", 0)];

/// A filter on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// [`INGRESS`], or one of those for what the device sends: `tc/egress`, `tc/root`.
    pub hook: &'static str,
    /// Its kind: `bpf`, `u32`, `flower` ...
    pub kind: String,
    /// The id of its program, if it is a BPF filter.
    pub id: Option<u32>,
    /// The name given when it was attached.
    pub name: Option<String>,
}

/// Returns the filters of a device, in the kernel's order. A device without such a qdisc has none.
pub fn filters(ifindex: u32) -> Vec<Filter> {
    let mut filters = Vec::new();
    for (hook, parent) in PARENTS {
        let mut question = TcMessage::default();
        question.header.index = ifindex.cast_signed();
        question.header.parent = TcHandle::from(parent);
        let answers = Netlink::open()
            .and_then(|mut socket| socket.dump(RouteNetlinkMessage::GetTrafficFilter(question)));
        let messages = answers.unwrap_or_default().into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewTrafficFilter(message) => Some(message),
            _ => None,
        });
        filters.extend(messages.filter_map(|message| filter(hook, &message)));
    }
    filters
}

/// Returns `None` for an entry that is only the head of a chain and matches nothing.
fn filter(hook: &'static str, message: &TcMessage) -> Option<Filter> {
    let mut filter = Filter { hook, kind: String::new(), id: None, name: None };
    let mut has_options = false;
    for attribute in &message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => filter.kind.clone_from(kind),
            TcAttribute::Options(options) => {
                has_options = true;
                for option in options {
                    match option {
                        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => filter.id = Some(*id),
                        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => filter.name = Some(name.clone()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    has_options.then_some(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bpf_filter_has_number_and_name_and_a_head_is_no_filter() {
        let mut message = TcMessage::default();
        message.attributes.push(TcAttribute::Kind("bpf".into()));
        assert_eq!(filter("tc/ingress", &message), None);
        message.attributes.push(TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgName("cil_from_netdev".into())),
            TcOption::Bpf(TcFilterBpfOption::ProgId(77)),
        ]));
        let wanted = Filter {
            hook: "tc/ingress",
            kind: "bpf".into(),
            id: Some(77),
            name: Some("cil_from_netdev".into()),
        };
        assert_eq!(filter("tc/ingress", &message), Some(wanted));
    }

    #[test]
    fn a_device_without_filters_has_none() {
        assert_eq!(filters(1), []);
    }
}
