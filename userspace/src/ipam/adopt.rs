//! Services that are ours without our own class. MetalLB may have served them: what their status has then stays theirs, and while
//! MetalLB may run they are left alone.

use super::pool::Pools;
use crate::model::cluster::{LoadBalancerSpec, ServiceSpec};
use crate::model::{Cluster, EventReason, ObjectRef, Problem};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// How a Service is adopted.
#[derive(Default)]
pub(super) struct Adoption {
    /// Addresses of its status that are to stay: no Claim says so yet.
    pub(super) addresses: Vec<IpAddr>,
    /// Why it is left alone: it keeps what it has, and gets nothing.
    pub(super) hold: Option<Hold>,
    /// What it was granted here goes all the same.
    pub(super) has_moved: bool,
}

/// Why a Service is left alone.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    /// `None`: it has all that it could ask for.
    pub(super) problem: Option<Problem>,
}

impl Adoption {
    /// `given`: what it has by Claims and by its status, as far as it does not ask for another pool.
    pub(super) fn of(
        cluster: &Cluster,
        pools: &Pools<'_>,
        object: &ObjectRef,
        service: &ServiceSpec,
        balancer: &LoadBalancerSpec,
        given: &[IpAddr],
    ) -> Self {
        if !balancer.is_adopted {
            return Self::default();
        }
        let has_moved = has_moved(cluster, object, balancer);
        let is_granted = cluster.possession.of_object(object).next().is_some() && !has_moved;
        let is_granted_this = |address| cluster.possession.of_object(object).any(|other| other == address);
        let is_foreign = |address: &IpAddr| !pools.have(*address) && !is_granted_this(*address);
        let foreign = balancer.given_by_others.iter().copied().find(is_foreign);
        let hold = hold(cluster, service, balancer, is_granted, foreign).map(|problem| Hold { problem });
        let is_wanted = |address: &&IpAddr| balancer.field.is_empty() || balancer.addresses.contains(address);
        let adopted = given.iter().filter(|_| !is_granted).filter(is_wanted);
        Self { addresses: adopted.copied().collect(), hold, has_moved }
    }

    /// Whether nothing of its status stays its own, and nothing leaves it alone.
    pub(super) fn is_none(&self) -> bool {
        self.addresses.is_empty() && self.hold.is_none()
    }

    /// Leaves it alone because an address of its status cannot be its own here.
    pub(super) fn refuse(&mut self, address: IpAddr, why: Option<String>) {
        let why = why.unwrap_or_else(|| format!("it asks for no address such as {address}"));
        let remedy = "add a range that has the address to the chart's values, or take it out of the status, for a new one";
        let problem = left("status.loadBalancer.ingress", why, remedy).value(address);
        self.hold = Some(Hold { problem: Some(problem) });
    }
}

/// Whether MetalLB, which runs again, has given it another address than it was granted here: agents answer for that one no more.
pub(super) fn has_moved(cluster: &Cluster, object: &ObjectRef, balancer: &LoadBalancerSpec) -> bool {
    // Before the first look nothing says that it may run.
    let may_run = cluster.pools_closed.as_ref().is_some_and(|own| own.may_run && !own.brief.is_empty());
    let granted: BTreeSet<IpAddr> = cluster.possession.of_object(object).collect();
    let shown: BTreeSet<IpAddr> = balancer.given.iter().copied().collect();
    // One of two that is not shown yet is no other one.
    balancer.is_adopted && may_run && !granted.is_subset(&shown) && !shown.is_subset(&granted)
}

/// Returns why it is left alone whatever its addresses are. `foreign`: an address that another implementation has written, and that
/// cannot be ours.
fn hold(
    cluster: &Cluster,
    service: &ServiceSpec,
    balancer: &LoadBalancerSpec,
    is_granted: bool,
    foreign: Option<IpAddr>,
) -> Option<Option<Problem>> {
    // One that was granted its addresses was so because MetalLB was away.
    if let Some(closed) = cluster.pools_closed.as_ref().filter(|closed| closed.may_run || !is_granted) {
        let remedy = "remove MetalLB, or make the Service again with class vestibule.dev/lb";
        let problem = || left("spec.loadBalancerClass", closed.brief.to_string(), remedy);
        return Some((!is_granted && !closed.brief.is_empty()).then(problem));
    }
    // Also one that was granted its addresses: both would write its status for ever.
    let remedy = "take it out of the status, for an address of the chart's ranges, or give the Service a class of another \
                  implementation";
    if let Some(name) = &balancer.foreign {
        let what = "another implementation has written a host name".to_owned();
        return Some(Some(left("status.loadBalancer.ingress", what, remedy).value(name)));
    }
    if let Some(address) = foreign {
        let what = format!(
            "another implementation has written {address}, and {address} is in none of the address ranges of the installation"
        );
        return Some(Some(left("status.loadBalancer.ingress", what, remedy).value(address)));
    }
    if is_granted {
        return None;
    }
    // What it has would go, though nobody can say that it asks for something else.
    if !balancer.unreadable.is_empty() && !balancer.given.is_empty() {
        let what = "not all addresses that it asks for can be read".to_owned();
        let problem =
            left(&balancer.field, what, "write IP addresses with commas between them, or remove it");
        return Some(Some(problem.reason(EventReason::LoadBalancerFailed)));
    }
    // Another implementation may serve it, and wrote its status.
    (!service.ports.iter().any(|port| port.is_tcp)).then(|| {
        let what = "it has no TCP port, and only TCP is served".to_owned();
        Some(left("spec.ports", what, "add a TCP port, or serve it by other means"))
    })
}

fn left(field: &str, why: String, remedy: &str) -> Problem {
    Problem::warning(field, format!("{why}: the Service is left as it is"), remedy)
}
