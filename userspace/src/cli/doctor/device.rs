//! The programs on a device, and how its settings affect packets that our program passes on.

use std::fs;

use super::{Finding, Verdict, finding};
use crate::dataplane::front;
use crate::dataplane::hooks::{self, Attached, Hook};
use crate::dataplane::pin::Pins;
use crate::model::Link;
use crate::net::ethtool::{self, Offloads};
use crate::net::filters::{self, Filter};

/// The smallest MTU in bytes of a device that carries IPv6 (RFC 8200 section 5).
const MTU_MIN: u32 = 1280;

/// Returns all findings for one device.
pub(super) fn look(pins: &Pins, index: u32, link: &Link) -> Vec<Finding> {
    let name = &link.name;
    let mut findings = Vec::new();
    let front = front::program(pins, index, link.xdp).ok().flatten();
    findings.extend(link.xdp.map(|id| xdp(link, id, front)));
    let ours = hooks::ours(pins).ok().flatten();
    let mut passed_by = 0;
    for hook in Hook::ALL {
        let what = format!("{name} {}", hook.text());
        match hooks::programs(index, hook) {
            Ok(programs) if programs.is_empty() => {}
            Ok(programs) => {
                passed_by += passed_by_xdp(hook, &programs, ours);
                findings.push(order(what, hook, &programs, ours, front.is_some()));
            }
            Err(error) => findings.push(finding(
                Verdict::Note,
                what,
                format!("cannot be asked: {error}"),
                "needs CAP_NET_ADMIN",
            )),
        }
    }
    for filter in filters::filters(index) {
        passed_by += usize::from(filter.hook != filters::INGRESS);
        findings.push(of_filter(name, &filter, front.is_some()));
    }
    let strict = |device: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    };
    if strict(name) || strict("all") {
        findings.push(finding(
            Verdict::Note,
            format!("rp_filter on {name}"),
            "strict",
            "of no effect on what our programs send on; it judges what they hand to the node itself",
        ));
    }
    // A device that does not support these queries has no such offloads.
    let offloads = ethtool::offloads(name).ok();
    findings.push(with_xdp(link, offloads, passed_by, front.is_some()));
    findings.extend(offloads.map(|found| of_offloads(name, found)).unwrap_or_default());
    findings
}

/// The largest MTU at which a frame with the room that XDP needs fits into one page of 4096 bytes: with larger ones, a driver has to
/// support fragments, or refuses.
const MTU_OF_A_PAGE: u32 = 3_498;

/// Says what XDP changes on this device, attached (`is_on`) or not. `passed_by`: programs and filters of others that do not see what it
/// answers.
fn with_xdp(link: &Link, offloads: Option<Offloads>, passed_by: usize, is_on: bool) -> Finding {
    let what = format!("{} with XDP", link.name);
    let state = if is_on { "attached" } else { "not attached" };
    let of = |is: fn(&Offloads) -> bool| offloads.as_ref().is_some_and(is);
    let mut changes = match link.is_veth {
        true => vec!["the other end sends no segments for this end to cut (TSO is off there)".to_owned()],
        false => of_driver(link, of(|found| found.large_receive), of(|found| found.hardware_receive), is_on),
    };
    if passed_by > 0 {
        changes.push(format!("{passed_by} programs or filters of others do not see what it answers"));
    }
    let (mut verdict, mut remedy) = (Verdict::Ok, String::new());
    if of(|found| found.tags_taken) {
        changes.push("a frame of any VLAN looks untagged to it, and may be answered as one".to_owned());
        if is_on {
            verdict = Verdict::Note;
            remedy = match link.is_veth {
                true => {
                    "`ethtool -K DEVICE txvlan off` for the other end, if that sends tagged frames".to_owned()
                }
                false => format!("`ethtool -K {} rxvlan off`, if tagged frames arrive there", link.name),
            };
        }
    }
    finding(verdict, what, format!("{state}; with it {}", changes.join(", ")), &remedy)
}

/// Returns what a driver changes when XDP is attached; `lro` and `gro`: whether the device merges segments now, irreversibly and so that
/// they can be split.
fn of_driver(link: &Link, lro: bool, gro: bool, is_on: bool) -> Vec<String> {
    let mut changes = Vec::new();
    for (name, is_active) in [("lro", lro), (ethtool::HARDWARE_RECEIVE, gro)] {
        changes.push(match (is_active, is_on) {
            (true, false) => format!("{name} goes off"),
            (true, true) => format!("{name} is on all the same"),
            (false, _) => format!("{name} is off"),
        });
    }
    changes.push(match link.mtu {
        mtu if mtu > MTU_OF_A_PAGE => {
            format!("an MTU of {mtu} is refused by drivers that put frames into one page")
        }
        mtu => format!("an MTU of {mtu} is possible"),
    });
    changes
}

/// Reports an XDP program, which runs before all others. `ours` is the one in our link.
fn xdp(link: &Link, id: u32, ours: Option<u32>) -> Finding {
    let what = format!("{} xdp", link.name);
    if ours == Some(id) {
        let (verdict, remedy) = match link.is_veth {
            true => (
                Verdict::Note,
                "on veth its answers are late or lost unless the other end has an XDP program, too; where all are lost, the daemon detaches it",
            ),
            false => (
                Verdict::Ok,
                "the driver turns LRO off meanwhile and may limit the MTU; to attach may interrupt the carrier",
            ),
        };
        return finding(verdict, what, format!("#{id} (ours)"), remedy);
    }
    let remedy = "runs before ours and may take packets for our addresses";
    finding(Verdict::Note, what, named(&Attached::of(id)), remedy)
}

fn of_offloads(device: &str, found: Offloads) -> Vec<Finding> {
    let by = |device: bool| if device { "by the device" } else { "by the kernel" };
    let text = format!("checked {}, made {}", by(found.rx_checksum), by(found.tx_checksum));
    let mut findings = vec![finding(Verdict::Ok, format!("checksums on {device}"), text, "")];
    if found.large_receive {
        findings.push(finding(
            Verdict::Bad,
            format!("large receive offload on {device}"),
            "on: what it puts together cannot be sent on",
            &format!("`ethtool -K {device} lro off`"),
        ));
    }
    if found.chained_receive {
        findings.push(finding(
            Verdict::Bad,
            format!("{} on {device}", ethtool::CHAINED_RECEIVE),
            "on: segments in a chain cannot be translated",
            &format!("`ethtool -K {device} {} off`", ethtool::CHAINED_RECEIVE),
        ));
    }
    findings
}

/// Reports the smallest and the largest MTU of the devices.
pub(super) fn sizes(links: &[&Link]) -> Option<Finding> {
    let smallest = links.iter().min_by_key(|link| link.mtu)?;
    let largest = links.iter().max_by_key(|link| link.mtu)?;
    let found = |text: String, verdict, remedy| Some(finding(verdict, "MTU", text, remedy));
    if smallest.mtu < MTU_MIN {
        let text = format!("{} on {}", smallest.mtu, smallest.name);
        return found(text, Verdict::Bad, "IPv6 needs 1280 bytes (RFC 8200 section 5): raise it");
    }
    if smallest.mtu == largest.mtu {
        return found(format!("{} on all devices", largest.mtu), Verdict::Ok, "");
    }
    let text = format!("{} on {}, {} on {}", smallest.mtu, smallest.name, largest.mtu, largest.name);
    found(
        text,
        Verdict::Note,
        "clients get the smallest on the routes to backends as MSS; larger packets get ICMP",
    )
}

/// What XDP answers, the driver sends at once.
const PASSED_BY: &str =
    "sees nothing of what XDP answers: that goes past qdiscs, filters and taps of the device";

/// Returns how many programs of the hook do not see what XDP answers, but would see TCX answer it: what is to be sent, and in front of
/// ours what was received.
fn passed_by_xdp(hook: Hook, programs: &[Attached], ours: Option<u32>) -> usize {
    match hook {
        Hook::TcxIngress => programs.iter().position(|program| Some(program.id) == ours).unwrap_or(0),
        Hook::TcxEgress => programs.len(),
    }
}

/// Reports the programs of a hook in the order they run; `with_xdp`: ours of XDP is on the device.
fn order(what: String, hook: Hook, programs: &[Attached], ours: Option<u32>, with_xdp: bool) -> Finding {
    let is_passed_by = passed_by_xdp(hook, programs, ours) > 0;
    let list: Vec<String> = programs
        .iter()
        .map(|program| match Some(program.id) == ours {
            true => format!("#{} (ours)", program.id),
            false => named(program),
        })
        .collect();
    let (verdict, remedy) = match (hook, is_passed_by, with_xdp) {
        (Hook::TcxIngress, true, false) => {
            (Verdict::Note, "others run before ours and may take packets for our addresses")
        }
        (Hook::TcxIngress, true, true) => (
            Verdict::Note,
            "others run before ours and may take packets for our addresses; what XDP answers or drops they do not see",
        ),
        (Hook::TcxEgress, true, true) => (Verdict::Note, PASSED_BY),
        (_, false, _) | (Hook::TcxEgress, true, false) => (Verdict::Ok, ""),
    };
    finding(verdict, what, list.join(", then "), remedy)
}

/// Reports a filter, which runs behind the programs of TCX.
fn of_filter(device: &str, filter: &Filter, with_xdp: bool) -> Finding {
    let program = filter.id.map(|id| named(&Attached { id, name: filter.name.clone() }));
    let found = program.unwrap_or_else(|| format!("a filter of kind {}", filter.kind));
    let remedy = match with_xdp && filter.hook != filters::INGRESS {
        true => PASSED_BY,
        false => "runs behind TCX programs",
    };
    finding(Verdict::Note, format!("{device} {}", filter.hook), found, remedy)
}

fn named(program: &Attached) -> String {
    match &program.name {
        Some(name) => format!("#{} {name}", program.id),
        None => format!("#{}", program.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_shown_and_who_is_before_us_is_noted() {
        let program = |id, name: Option<&str>| Attached { id, name: name.map(str::to_owned) };
        let both = [program(7, Some("cil_from_netdev")), program(9, None)];
        let ingress = Hook::TcxIngress;
        let found = order("eth0 tcx/ingress".into(), ingress, &both, Some(9), false);
        assert_eq!(
            (found.verdict, found.found.as_str()),
            (Verdict::Note, "#7 cil_from_netdev, then #9 (ours)")
        );
        let found = order("eth0 tcx/ingress".into(), ingress, &both, Some(7), true);
        assert_eq!((found.verdict, found.found.as_str()), (Verdict::Ok, "#7 (ours), then #9"));
        assert_eq!(order(String::new(), ingress, &both, None, true).verdict, Verdict::Ok);
    }

    #[test]
    fn what_does_not_see_what_xdp_answers_is_noted_once_xdp_is_on() {
        let both = [7, 9].map(|id| Attached { id, name: None });
        let told = |hook, ours, with_xdp| {
            let found = order(String::new(), hook, &both, ours, with_xdp);
            (found.verdict, found.remedy.contains("what XDP answers"))
        };
        assert_eq!(told(Hook::TcxEgress, Some(9), false), (Verdict::Ok, false));
        assert_eq!(told(Hook::TcxEgress, Some(9), true), (Verdict::Note, true));
        assert_eq!(told(Hook::TcxIngress, Some(9), false), (Verdict::Note, false));
        assert_eq!(told(Hook::TcxIngress, Some(9), true), (Verdict::Note, true));
        assert_eq!(told(Hook::TcxIngress, Some(7), true), (Verdict::Ok, false));
        for (hook, passed_by) in [(filters::INGRESS, false), ("tc/egress", true), ("tc/root", true)] {
            let filter = Filter { hook, kind: "u32".into(), id: None, name: None };
            for with_xdp in [false, true] {
                let found = of_filter("eth0", &filter, with_xdp);
                assert_eq!(found.remedy == PASSED_BY, passed_by && with_xdp, "{hook}");
                assert_eq!(
                    (found.what, found.found),
                    (format!("eth0 {hook}"), "a filter of kind u32".into())
                );
            }
        }
        let counts = [Hook::TcxIngress, Hook::TcxEgress].map(|hook| passed_by_xdp(hook, &both, Some(9)));
        assert_eq!(counts, [1, 2]);
    }

    #[test]
    fn an_xdp_program_is_ours_if_it_is_in_our_link() {
        let link = Link { name: "eth0".into(), ..Link::default() };
        let found = |link: &Link, ours| {
            let found = xdp(link, 7, ours);
            (found.verdict, found.found.ends_with("(ours)"))
        };
        assert_eq!(found(&link, Some(7)), (Verdict::Ok, true));
        assert_eq!(found(&link, Some(8)), (Verdict::Note, false));
        assert_eq!(found(&link, None), (Verdict::Note, false));
        assert_eq!(found(&Link { is_veth: true, ..link }, Some(7)), (Verdict::Note, true));
    }

    #[test]
    fn what_xdp_changes_is_said_before_it_is_attached() {
        let offloads = |lro, gro| {
            let all = Offloads {
                rx_checksum: true,
                tx_checksum: true,
                large_receive: lro,
                hardware_receive: gro,
                chained_receive: false,
                tags_taken: false,
            };
            Some(all)
        };
        let link = |mtu, is_veth| Link { name: "eth0".into(), mtu, is_veth, ..Link::default() };
        let found = |link: &Link, offloads, is_on| with_xdp(link, offloads, 0, is_on).found;
        assert_eq!(
            found(&link(1500, false), offloads(true, true), false),
            "not attached; with it lro goes off, rx-gro-hw goes off, an MTU of 1500 is possible"
        );
        assert_eq!(
            found(&link(9000, false), offloads(false, false), true),
            "attached; with it lro is off, rx-gro-hw is off, an MTU of 9000 is refused by drivers that put frames into one page"
        );
        assert!(found(&link(1500, false), None, false).contains("lro is off, rx-gro-hw is off"));
        assert!(found(&link(1500, true), offloads(false, false), true).contains("TSO is off there"));
        for is_veth in [false, true] {
            let link = link(1500, is_veth);
            let others = with_xdp(&link, None, 3, false);
            assert!(others.found.ends_with("3 programs or filters of others do not see what it answers"));
            let tagless = offloads(false, false).map(|found| Offloads { tags_taken: true, ..found });
            for (is_on, verdict) in [(false, Verdict::Ok), (true, Verdict::Note)] {
                let told = with_xdp(&link, tagless, 0, is_on);
                assert!(told.found.contains("a frame of any VLAN looks untagged to it"), "{}", told.found);
                assert_eq!((told.verdict, told.remedy.contains("vlan off")), (verdict, is_on));
            }
        }
    }

    #[test]
    fn sizes_that_differ_are_noted_and_too_small_ones_are_bad() {
        let link = |name: &str, mtu| Link { name: name.into(), mtu, ethernet: true, ..Link::default() };
        let (a, b, c) = (link("eth0", 1500), link("cali1", 1450), link("tun0", 1000));
        assert!(sizes(&[]).is_none());
        assert_eq!(sizes(&[&a, &a]).unwrap().verdict, Verdict::Ok);
        let found = sizes(&[&a, &b]).unwrap();
        assert_eq!((found.verdict, found.found.as_str()), (Verdict::Note, "1450 on cali1, 1500 on eth0"));
        assert_eq!(sizes(&[&a, &c]).unwrap().verdict, Verdict::Bad);
    }
}
