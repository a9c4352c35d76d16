//! ReferenceGrants: which objects may refer to objects of other namespaces.

use crate::model::cluster::Cluster;
use crate::model::kind::GATEWAY_GROUP;
use crate::model::{Kind, ObjectName};
use foldhash::HashMap;
use std::sync::Arc;

/// The Services of one namespace that routes of another may refer to.
#[derive(Default)]
struct Allowed<'a> {
    /// Any Service.
    all: bool,
    /// These Services.
    names: Vec<&'a str>,
}

/// All grants from routes to Services, for one lookup per reference.
pub(super) struct Grants<'a> {
    /// By the Services' namespace, the kind of route and the route's namespace.
    allowed: HashMap<(&'a str, Kind, &'a str), Allowed<'a>>,
}

impl<'a> Grants<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let mut allowed: HashMap<_, Allowed<'a>> = HashMap::default();
        for (ObjectName { namespace, .. }, grant) in &cluster.namespaces.grants {
            let services = grant.to.iter().filter(|(to, _)| to.group.is_empty() && &*to.kind == "Service");
            let services: Vec<Option<&Arc<str>>> = services.map(|(_, name)| name.as_ref()).collect();
            for (from, from_namespace) in &grant.from {
                let kind = match &*from.kind {
                    "TLSRoute" => Kind::TlsRoute,
                    "TCPRoute" => Kind::TcpRoute,
                    _ => continue,
                };
                if &*from.group != GATEWAY_GROUP {
                    continue;
                }
                let allowed = allowed.entry((&**namespace, kind, &**from_namespace)).or_default();
                for name in &services {
                    match name {
                        Some(name) => allowed.names.push(name),
                        None => allowed.all = true,
                    }
                }
            }
        }
        Self { allowed }
    }

    /// Whether routes of this kind and namespace may refer to a Service. Within a namespace they always may.
    pub(super) fn allow(&self, kind: Kind, from: &str, service: &ObjectName) -> bool {
        let allowed = || self.allowed.get(&(&*service.namespace, kind, from));
        from == &*service.namespace
            || allowed().is_some_and(|allowed| allowed.all || allowed.names.contains(&&*service.name))
    }
}
