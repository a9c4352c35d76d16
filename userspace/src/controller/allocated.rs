//! What changes of the addresses of Services, for Events in MetalLB's words: one for each change. Pure.

use crate::ipam::Allocation;
use crate::model::cluster::{LoadBalancerSpec, ServiceSpec};
use crate::model::{Cluster, EventReason, Kind, ObjectName, ObjectRef};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// What is known of the addresses of Services.
#[derive(Debug, Default)]
pub(super) struct Allocated {
    known: BTreeMap<ObjectName, Known>,
}

/// A Service when it was last looked at.
#[derive(Debug, Default)]
struct Known {
    uid: Arc<str>,
    addresses: Vec<IpAddr>,
    /// Why it has no address of its second family.
    spare: Option<String>,
    deprecated: Vec<Arc<str>>,
}

/// Something that happened to a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happening {
    pub(super) service: ObjectName,
    pub(super) reason: EventReason,
    pub(super) text: String,
}

impl Allocated {
    /// Forgets everything: another controller led meanwhile.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    /// Returns what has changed. Of a Service that is new here, Claims and its status say what it had.
    pub(super) fn changes(
        &mut self,
        cluster: &Cluster,
        services: &BTreeMap<ObjectName, Allocation>,
    ) -> Vec<Happening> {
        let mut happenings = Vec::new();
        let mut before = std::mem::take(&mut self.known);
        for (name, allocation) in services {
            let Some(service) = cluster.services.get(name) else { continue };
            let Some(balancer) = service.load_balancer.as_deref() else { continue };
            let known = before.remove(name).filter(|known| known.uid == service.meta.uid);
            let known = known.unwrap_or_else(|| Known::of(cluster, name, service, balancer, allocation));
            if allocation.is_held {
                self.known.insert(name.clone(), known);
                continue;
            }
            let mut add = |reason, text| happenings.push(Happening { service: name.clone(), reason, text });
            let now = known.compare(cluster, name, balancer, allocation, &mut add);
            self.known.insert(name.clone(), now);
        }
        for (name, known) in before.into_iter().filter(|(_, known)| !known.addresses.is_empty()) {
            // It is there, but no load balancer of ours any more.
            if cluster.services.get(&name).is_some_and(|service| service.meta.uid == known.uid) {
                let text =
                    cleared(&known.addresses, &name, "it is no load balancer of this installation any more");
                happenings.push(Happening { service: name, reason: EventReason::ClearAssignment, text });
            }
        }
        happenings
    }
}

impl Known {
    fn of(
        cluster: &Cluster,
        name: &ObjectName,
        service: &ServiceSpec,
        balancer: &LoadBalancerSpec,
        allocation: &Allocation,
    ) -> Self {
        let object = ObjectRef { kind: Kind::Service, name: name.clone() };
        let mut addresses: Vec<IpAddr> = cluster.possession.of_object(&object).collect();
        addresses.extend(
            balancer.given.iter().filter(|address| !addresses.contains(address)).copied().collect::<Vec<_>>(),
        );
        // The former leader has said so of one that has its addresses.
        let is_as_before = allocation.addresses.iter().all(|address| addresses.contains(address));
        let (spare, deprecated) = match is_as_before {
            true => (allocation.spare.clone(), balancer.deprecated.clone()),
            false => (None, Vec::new()),
        };
        Self { uid: Arc::clone(&service.meta.uid), addresses, spare, deprecated }
    }

    /// Adds what has changed. Returns how it is now.
    fn compare(
        self,
        cluster: &Cluster,
        name: &ObjectName,
        balancer: &LoadBalancerSpec,
        allocation: &Allocation,
        add: &mut impl FnMut(EventReason, String),
    ) -> Self {
        let now = &allocation.addresses;
        let lost: Vec<IpAddr> = self.addresses.iter().filter(|had| !now.contains(had)).copied().collect();
        let gained: Vec<IpAddr> = now.iter().filter(|has| !self.addresses.contains(has)).copied().collect();
        if !lost.is_empty() {
            let is_excluded = |address| cluster.policy.excluded.iter().any(|net| net.contains(address));
            let why = match lost.iter().any(is_excluded) {
                true => "not allowed by config",
                false => "it asks for another one",
            };
            add(EventReason::ClearAssignment, cleared(&lost, name, why));
        }
        let is_additional = !self.addresses.is_empty() && lost.is_empty();
        match gained.as_slice() {
            [] => {}
            [more] if is_additional => {
                add(EventReason::IpAllocated, format!("Assigned additional IP \"{more}\""))
            }
            _ => add(EventReason::IpAllocated, format!("Assigned IP {}", list(&gained))),
        }
        if let Some(why) = allocation.spare.as_ref().filter(|why| self.spare.as_ref() != Some(*why)) {
            let text = format!("cannot assign additional IP in PreferDualStack: {why}");
            add(EventReason::AdditionalAssignFailed, text);
        }
        for annotation in balancer.deprecated.iter().filter(|one| !self.deprecated.contains(one)) {
            let instead = annotation.replacen("metallb.universe.tf", "metallb.io", 1);
            let text = format!("Service uses deprecated annotation {annotation}; write {instead}");
            add(EventReason::DeprecatedAnnotation, text);
        }
        let (spare, deprecated) = (allocation.spare.clone(), balancer.deprecated.clone());
        Self { uid: self.uid, addresses: now.clone(), spare, deprecated }
    }
}

fn cleared(addresses: &[IpAddr], name: &ObjectName, why: &str) -> String {
    format!("current IP {} for \"{name}\" cleared: {why}", list(addresses))
}

/// Returns addresses as MetalLB lists them: `["192.0.2.1" "2001:db8::1"]`.
fn list(addresses: &[IpAddr]) -> String {
    let quoted: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Meta;

    fn name() -> ObjectName {
        ObjectName::new("a", "s")
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A cluster with a Service of this uid, or with none.
    fn cluster(uid: &str, balancer: Option<LoadBalancerSpec>) -> Cluster {
        let meta = Meta { name: name(), uid: uid.into(), ..Meta::default() };
        let service = ServiceSpec { meta, load_balancer: balancer.map(Arc::new), ..ServiceSpec::default() };
        Cluster { services: [(name(), Arc::new(service))].into(), ..Cluster::default() }
    }

    fn ours() -> Option<LoadBalancerSpec> {
        Some(LoadBalancerSpec::default())
    }

    fn has(addresses: &[&str]) -> Allocation {
        Allocation { addresses: addresses.iter().map(|text| ip(text)).collect(), ..Allocation::default() }
    }

    fn lines(this: &mut Allocated, cluster: &Cluster, allocation: Allocation) -> Vec<String> {
        let changes = this.changes(cluster, &[(name(), allocation)].into());
        changes.into_iter().map(|one| format!("{}: {}", one.reason.text(), one.text)).collect()
    }

    #[test]
    fn each_change_is_said_once() {
        let mut this = Allocated::default();
        let here = cluster("u", ours());
        let none: [&str; 0] = [];
        assert_eq!(lines(&mut this, &here, has(&[])), none);
        let first = ["192.0.2.1", "2001:db8::1"];
        let said = [r#"IPAllocated: Assigned IP ["192.0.2.1" "2001:db8::1"]"#];
        assert_eq!(lines(&mut this, &here, has(&first)), said);
        assert_eq!(lines(&mut this, &here, has(&first)), none);
        let said =
            [r#"ClearAssignment: current IP ["2001:db8::1"] for "a/s" cleared: it asks for another one"#];
        assert_eq!(lines(&mut this, &here, has(&["192.0.2.1"])), said);
        assert_eq!(
            lines(&mut this, &here, has(&first)),
            [r#"IPAllocated: Assigned additional IP "2001:db8::1""#]
        );
        // While it is left alone, nothing is known of it.
        assert_eq!(lines(&mut this, &here, Allocation { is_held: true, ..Allocation::default() }), none);
        let mut excluding = here.clone();
        excluding.policy.excluded = vec!["192.0.2.0/24".parse().unwrap()];
        let said = [
            r#"ClearAssignment: current IP ["192.0.2.1" "2001:db8::1"] for "a/s" cleared: not allowed by config"#,
            r#"IPAllocated: Assigned IP ["198.51.100.1"]"#,
        ];
        assert_eq!(lines(&mut this, &excluding, has(&["198.51.100.1"])), said);
        let other = cluster("v", ours());
        assert_eq!(lines(&mut this, &other, has(&[])), none, "another one of its name");
    }

    #[test]
    fn the_next_leader_and_who_adopts_say_nothing_of_what_was_there() {
        let mut this = Allocated::default();
        let mut granted = cluster("u", ours());
        let object = ObjectRef { kind: Kind::Service, name: name() };
        granted.possession.add_address(&object, ip("192.0.2.1"));
        assert_eq!(lines(&mut this, &granted, has(&["192.0.2.1"])), [""; 0]);
        this.clear();
        let given = LoadBalancerSpec { given: vec![ip("192.0.2.1")], ..LoadBalancerSpec::default() };
        let spare = Some("no free IPv6 address in the pool p".to_owned());
        let has_one = Allocation { spare, ..has(&["192.0.2.1"]) };
        assert_eq!(lines(&mut this, &cluster("u", Some(given)), has_one.clone()), [""; 0]);
        this.clear();
        let deprecated = vec!["metallb.universe.tf/address-pool".into()];
        let new = LoadBalancerSpec { deprecated, ..LoadBalancerSpec::default() };
        let said = [
            r#"IPAllocated: Assigned IP ["192.0.2.1"]"#,
            "AdditionalAssignFailed: cannot assign additional IP in PreferDualStack: no free IPv6 address in the pool p",
            "deprecatedAnnotation: Service uses deprecated annotation metallb.universe.tf/address-pool; write metallb.io/address-pool",
        ];
        assert_eq!(lines(&mut this, &cluster("u", Some(new.clone())), has_one.clone()), said);
        assert_eq!(lines(&mut this, &cluster("u", Some(new)), has_one), [""; 0]);
    }

    #[test]
    fn who_is_no_load_balancer_any_more_gives_back_and_who_is_gone_says_nothing() {
        for (after, count) in [(cluster("u", None), 1), (cluster("v", None), 0), (Cluster::default(), 0)] {
            let mut this = Allocated::default();
            lines(&mut this, &cluster("u", ours()), has(&["192.0.2.1"]));
            let changes = this.changes(&after, &BTreeMap::new());
            assert!(changes.iter().all(|one| one.reason == EventReason::ClearAssignment));
            assert_eq!(changes.len(), count);
            assert_eq!(this.changes(&after, &BTreeMap::new()), []);
        }
    }
}
