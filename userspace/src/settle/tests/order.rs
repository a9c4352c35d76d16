//! The result of a cluster does not depend on the order of its objects, and each name leads to the route that
//! should have it.

use super::super::pattern::intersection;
use super::super::{Most, settle};
use super::*;
use crate::ipam;
use crate::model::claim::Granted;
use crate::origins::tests as origins;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

/// `+.example.com` is one label before the suffix.
const NAMES: [&str; 10] = [
    "*.com",
    "*.example.com",
    "*.a.example.com",
    "x.example.com",
    "x.a.example.com",
    "kubernetes",
    "*.org",
    "+.example.com",
    "+.a.example.com",
    "+.com",
];
/// Those that an object of an origin asks for.
const HOSTS: [usize; 6] = [3, 4, 5, 7, 8, 9];
const PORTS: [u16; 3] = [443, 9000, 8443];
/// The address of the chart's listener on which origins are served.
const OF_ORIGINS: &str = "192.0.2.200";
pub(super) const NAMESPACES: [&str; 3] = ["a", "b", "c"];

/// An object to be added to the scene.
#[derive(Clone, Debug)]
pub(super) enum Object {
    Gateway {
        namespace: usize,
        age: i64,
        address: usize,
        hosts: Vec<Option<usize>>,
        tcp: bool,
    },
    Set {
        namespace: usize,
        age: i64,
        of: usize,
        host: usize,
    },
    Tls {
        namespace: usize,
        age: i64,
        of: usize,
        hosts: Vec<usize>,
        weight: u8,
    },
    Tcp {
        namespace: usize,
        age: i64,
        of: usize,
    },
    /// Of our class: it contends for addresses and ports with Gateways and other Services.
    Service {
        namespace: usize,
        age: i64,
        address: usize,
        ports: Vec<usize>,
    },
    /// Of the table of origins: it contends for names with others of its kind.
    Asking {
        namespace: usize,
        age: i64,
        hosts: Vec<usize>,
    },
}

impl Object {
    /// Index of its namespace.
    pub(super) fn namespace(&self) -> usize {
        match self {
            Self::Gateway { namespace, .. }
            | Self::Set { namespace, .. }
            | Self::Tls { namespace, .. }
            | Self::Tcp { namespace, .. }
            | Self::Service { namespace, .. }
            | Self::Asking { namespace, .. } => *namespace,
        }
    }
}

pub(super) fn object() -> impl Strategy<Value = Object> {
    let gateway = (
        0..3_usize,
        0..4_i64,
        0..3_usize,
        prop::collection::vec(prop::option::of(0..NAMES.len()), 1..4),
        any::<bool>(),
    )
        .prop_map(|(namespace, age, address, hosts, tcp)| Object::Gateway {
            namespace,
            age,
            address,
            hosts,
            tcp,
        });
    let set = (0..3_usize, 0..4_i64, 0..9_usize, 0..NAMES.len())
        .prop_map(|(namespace, age, of, host)| Object::Set { namespace, age, of, host });
    let tls = (0..3_usize, 0..4_i64, 0..9_usize, prop::collection::vec(0..NAMES.len(), 0..4), 0..3_u8)
        .prop_map(|(namespace, age, of, hosts, weight)| Object::Tls { namespace, age, of, hosts, weight });
    let tcp = (0..3_usize, 0..4_i64, 0..9_usize).prop_map(|(namespace, age, of)| Object::Tcp {
        namespace,
        age,
        of,
    });
    let service = (0..3_usize, 0..4_i64, 0..3_usize, prop::collection::vec(0..PORTS.len(), 1..3))
        .prop_map(|(namespace, age, address, ports)| Object::Service { namespace, age, address, ports });
    let asking = (0..3_usize, 0..4_i64, prop::collection::vec(0..HOSTS.len(), 1..4))
        .prop_map(|(namespace, age, hosts)| Object::Asking { namespace, age, hosts });
    prop_oneof![2 => gateway, 1 => set, 5 => tls, 1 => tcp, 1 => service, 2 => asking]
}

/// The Gateway that an object refers to by this number.
pub(super) fn gateway(objects: &[Object], of: usize) -> String {
    let gateways: Vec<(usize, usize)> = (0..)
        .zip(objects)
        .filter_map(|(at, object)| match object {
            Object::Gateway { namespace, .. } => Some((at, *namespace)),
            _ => None,
        })
        .collect();
    let found = gateways.get(of % gateways.len().max(1));
    found.map_or("a/none".to_owned(), |(at, namespace)| format!("{}/o{at}", NAMESPACES[*namespace]))
}

/// Builds the scene by adding its objects in this order. An object is named by its index in `objects`, so
/// that names do not depend on the order.
pub(super) fn scene(objects: &[Object], order: &[usize]) -> Scene {
    let mut scene = Scene::new();
    scene.cluster().policy.shared = [ip("192.0.2.1")].into();
    scene.service("a/s", &["10.0.0.1", "10.0.0.2 draining"]);
    scene.file_listener("https", Protocol::Tls, &[OF_ORIGINS], 443, None);
    origins::serve(scene.cluster(), &["https"]);
    let parent = |of: usize| gateway(objects, of);
    for at in order {
        let own = |namespace: &usize| format!("{}/o{at}", NAMESPACES[*namespace]);
        match &objects[*at] {
            Object::Gateway { namespace, age, address, hosts, tcp } => {
                let mut listeners: Vec<String> = hosts
                    .iter()
                    .enumerate()
                    .map(|(n, host)| {
                        let host = host.map_or(String::new(), |host| format!(":{}", NAMES[host]));
                        format!("l{n} TLS:443{host} from=All")
                    })
                    .collect();
                if *tcp {
                    listeners.push("tcp TCP:9000 from=All".to_owned());
                }
                let listeners: Vec<&str> = listeners.iter().map(String::as_str).collect();
                let address = format!("192.0.2.{}", address + 1);
                scene.gateway(&own(namespace), *age, &address, &listeners).allowed_listeners =
                    NamespaceScope::All;
            }
            Object::Set { namespace, age, of, host } => {
                let listener = format!("l TLS:443:{} from=All", NAMES[*host]);
                scene.listener_set(&own(namespace), *age, &parent(*of), &[&listener]);
            }
            Object::Tls { namespace, age, of, hosts, weight } => {
                let hosts: Vec<&str> = hosts.iter().map(|host| NAMES[*host]).collect();
                let reference = format!("s:443*{weight}");
                scene.tls(&own(namespace), *age, &[&parent(*of)], &hosts, &[&reference, "none:443"]);
            }
            Object::Tcp { namespace, age, of } => {
                scene.tcp(&own(namespace), *age, &[&parent(*of)], &["s:443"])
            }
            Object::Service { namespace, age, address, ports } => {
                let address = ip(&format!("192.0.2.{}", address + 1));
                balancer(&mut scene, &own(namespace), *age, address, ports);
            }
            Object::Asking { namespace, age, hosts } => {
                let hosts: BTreeSet<&str> = hosts.iter().map(|host| NAMES[HOSTS[*host]]).collect();
                let rules: Vec<String> = hosts.into_iter().map(|host| format!("{host} s")).collect();
                let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
                origins::put(scene.cluster(), meta(&own(namespace), *age), &rules);
            }
        }
    }
    scene
}

/// Adds a Service of our class with these ports.
fn balancer(scene: &mut Scene, object: &str, age: i64, address: IpAddr, ports: &[usize]) {
    let service = scene.service(object, &["10.0.0.3"]);
    service.meta.created_secs = age;
    let ports: BTreeSet<u16> = ports.iter().map(|port| PORTS[*port]).collect();
    let port = |port: u16| ServicePort {
        name: format!("p{port}").into(),
        port,
        is_tcp: true,
        protocol: "TCP".into(),
    };
    service.ports = ports.into_iter().map(port).collect();
    let spec = LoadBalancerSpec { addresses: vec![address], ..LoadBalancerSpec::default() };
    service.load_balancer = Some(Arc::new(spec));
}

/// Returns the route of a name on a binding, looked up as in the data plane.
fn looked_up<'a>(desired: &'a Desired, binding: usize, host: &str) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for route in &desired.routes {
        for (_, pattern) in route.names.iter().filter(|(listener, _)| *listener == binding) {
            let length = match pattern {
                Pattern::Exact(name) if name.as_str() == host => usize::MAX,
                Pattern::OneLabel(suffix)
                    if host.split_once('.').is_some_and(|(_, rest)| rest == suffix.as_str()) =>
                {
                    usize::MAX - 1
                }
                Pattern::Wildcard(suffix) if host.ends_with(&format!(".{suffix}")) => suffix.as_str().len(),
                _ => continue,
            };
            assert_ne!(best.map(|(best, _)| best), Some(length), "two routes have {pattern}");
            best = best.max(Some((length, &route.name)));
        }
    }
    best.map(|(_, route)| route)
        .or_else(|| desired.listeners[binding].route.map(|at| &*desired.routes[at].name))
}

/// A pattern that a route requests on a binding, in terms of the rules.
struct Wish<'a> {
    gateway: &'a ObjectName,
    /// Host names of the Gateway's accepted TLS listeners on the port.
    others: Vec<Option<&'a Pattern>>,
    /// Hostname of the listener that it is attached through.
    hostname: Option<&'a Pattern>,
    /// The part that the listener leaves of the requested pattern.
    pattern: Option<&'a Pattern>,
    /// The least one wins: by specificity as written, then by age and name.
    merit: (std::cmp::Reverse<usize>, i64, &'a ObjectName),
}

fn specificity(pattern: Option<&Pattern>) -> usize {
    match pattern {
        None => 0,
        Some(Pattern::Exact(_)) => usize::MAX,
        // More than any depth before the same suffix, less than anything before a longer one.
        Some(Pattern::OneLabel(suffix)) => 10 * suffix.as_str().len() + 1,
        Some(Pattern::Wildcard(suffix)) => 10 * suffix.as_str().len(),
    }
}

impl Wish<'_> {
    /// Whether it matches the names of a pattern, and they belong to its listener and not to a more specific
    /// one.
    fn may_have(&self, pattern: Option<&Pattern>) -> bool {
        let covers = |wide: Option<&Pattern>| intersection(wide, pattern) == Some(pattern);
        let best = self
            .others
            .iter()
            .copied()
            .filter(|other| covers(*other))
            .max_by_key(|other| specificity(*other));
        covers(self.pattern) && best == Some(self.hostname)
    }
}

/// Returns all wishes of TLSRoutes on an address. In these scenes routes attach to Gateways, not to
/// ListenerSets.
fn wishes<'a>(cluster: &'a Cluster, verdicts: &Verdicts, address: IpAddr) -> Vec<Wish<'a>> {
    let accepted = |verdicts: &[ListenerVerdict], at: usize| {
        verdicts.get(at).is_some_and(|verdict| verdict.conditions[0].status == Status::True)
    };
    let mut wishes = Vec::new();
    for (gateway, spec) in &cluster.gateways {
        let verdict = &verdicts.gateways[gateway];
        if !verdict.addresses.contains(&address) || !spec.given.contains(&address) {
            continue;
        }
        let own = spec.listeners.iter().enumerate();
        let own =
            own.filter(|(at, listener)| &*listener.protocol == "TLS" && accepted(&verdict.listeners, *at));
        let own: Vec<Option<&Pattern>> = own.map(|(_, listener)| listener.hostname.as_ref()).collect();
        let mut others = own.clone();
        for (set, verdict) in &verdicts.listener_sets {
            let set = &cluster.listener_sets[set];
            if set.parent.namespace.as_deref() == Some(&gateway.namespace) && set.parent.name == gateway.name
            {
                let all =
                    set.listeners.iter().enumerate().filter(|(at, _)| accepted(&verdict.listeners, *at));
                others.extend(all.map(|(_, listener)| listener.hostname.as_ref()));
            }
        }
        for (object, route) in &cluster.tls_routes {
            let parent = &route.parents[0];
            if parent.namespace.as_deref() != Some(&gateway.namespace) || parent.name != gateway.name {
                continue;
            }
            for written in super::super::attach::wishes(route) {
                for hostname in own.iter().copied() {
                    let Some(pattern) = intersection(hostname, written) else { continue };
                    let merit = (std::cmp::Reverse(specificity(written)), route.meta.created_secs, object);
                    let wish = Wish { gateway, others: others.clone(), hostname, pattern, merit };
                    let reserved = pattern == Some(&super::pattern("kubernetes"));
                    if wish.may_have(pattern) && !reserved {
                        wishes.push(wish);
                    }
                }
            }
        }
    }
    wishes
}

/// Returns the route that should have a name: the best of those that may have it and did not lose their
/// pattern to a better one.
fn wanted(wishes: &[Wish<'_>], host: &str) -> Option<String> {
    let better =
        |other: &Wish<'_>, wish: &Wish<'_>| other.merit < wish.merit && other.merit.2 != wish.merit.2;
    // Equal patterns are compared first: a wish that lost its pattern there cannot win a narrower one.
    let lost =
        |wish: &&Wish<'_>| wishes.iter().any(|other| other.pattern == wish.pattern && better(other, wish));
    let mut left: Vec<&Wish<'_>> = wishes.iter().filter(|wish| !lost(wish)).collect();
    left.sort_by_key(|wish| specificity(wish.pattern));
    let mut holders: Vec<&Wish<'_>> = Vec::new();
    for wish in left {
        let wider = |other: &&&Wish<'_>| other.gateway != wish.gateway && other.may_have(wish.pattern);
        if !holders.iter().filter(wider).any(|other| better(other, wish)) {
            holders.push(wish);
        }
    }
    let host = pattern(host);
    let best = holders.iter().filter(|wish| wish.may_have(Some(&host)));
    best.map(|wish| &wish.merit).min().map(|(_, _, object)| format!("tlsroute/{object}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 3000 }))]

    #[test]
    fn any_order_of_objects_comes_to_the_same(
        objects in prop::collection::vec(object(), 1..14),
        seed in any::<u64>(),
    ) {
        let straight: Vec<usize> = (0..objects.len()).collect();
        let mut shuffled = straight.clone();
        shuffled.sort_by_key(|at| common::decide::maglev::mix(seed ^ *at as u64));
        let one = scene(&objects, &straight).compiled();
        let other = scene(&objects, &shuffled).compiled();
        prop_assert_eq!(&one, &other);
        prop_assert!(one.desired.routes.iter().is_sorted_by(|a, b| a.name < b.name));
        prop_assert!(one.desired.listeners.is_sorted_by(|a, b| a.name < b.name));
    }

    /// What a claim is called stays its own, and nothing is granted to two.
    #[test]
    fn claims_are_told_apart_and_share_no_grant_but_bindings(objects in prop::collection::vec(object(), 1..14)) {
        let order: Vec<usize> = (0..objects.len()).collect();
        let scene = scene(&objects, &order);
        let cluster = scene.facts.cluster.as_ref().unwrap();
        let (file, assignment) = (Desired::default(), ipam::assign(cluster));
        let claims = settle(&file, cluster, &assignment, Most::default()).claims;
        let (mut called, mut granted) = (HashSet::new(), HashSet::new());
        for claim in &claims {
            let of = claim.origin.object().unwrap();
            prop_assert!(called.insert((of, &claim.part)), "{claim:?}");
            for grant in claim.grants.iter().filter(|grant| grant.what != Granted::Binding) {
                prop_assert!(granted.insert((grant.at(), format!("{:?}", grant.what))), "{grant:?} twice");
            }
        }
    }

    #[test]
    fn every_name_goes_to_the_route_that_should_have_it(objects in prop::collection::vec(object(), 1..14)) {
        let order: Vec<usize> = (0..objects.len()).collect();
        let scene = scene(&objects, &order);
        let Compiled { desired, verdicts, .. } = scene.compiled();
        for (binding, listener) in desired.listeners.iter().enumerate().filter(|(_, l)| l.protocol == Protocol::Tls) {
            // The chart's listener has what origins ask for.
            if listener.addresses[0] == ip(OF_ORIGINS) {
                continue;
            }
            let wishes = wishes(scene.facts.cluster.as_ref().unwrap(), &verdicts, listener.addresses[0]);
            for host in ["x.example.com", "x.a.example.com", "z.x.a.example.com", "y.example.com", "y.a.example.com", "example.com", "x.org", "net"] {
                let found = looked_up(&desired, binding, host).filter(|route| !route.starts_with("gateway/"));
                let wanted = wanted(&wishes, host);
                prop_assert_eq!(found, wanted.as_deref(), "{} on {}\n{}", host, &listener.name, scene.bindings());
            }
        }
    }
}
