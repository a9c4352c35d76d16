//! An origin as small as one can be: a name on the listener that an annotation names. Its status has a condition of ours.

use super::super::{Answer, Ask, AskView, Asking, Fetched, Origin, WatchRow};
use crate::model::claim::ClaimBackend;
use crate::model::cluster::{BackendRef, Policy};
use crate::model::kind::{KindRow, OUR_PROGRAMMED, Says};
use crate::model::verdict::OriginVerdict;
use crate::model::{
    Cluster, Kind, Meta, ObjectName, ObjectRef, Opaque, OriginObject, Pattern, Problem, Resource,
};
use crate::sources::kubernetes::interner::Interner;
use crate::sources::kubernetes::served::{Extent, Served};
use crate::sources::kubernetes::value;
use crate::status::condition::{Judged, merge};
use crate::status::progress::{Progress, programmed};
use crate::status::{changed, service};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) struct Sample;

const SAMPLES: Resource = Resource { group: "sample.example", plural: "samples" };

pub(crate) const KIND: Kind = Kind::Origin(&KindRow {
    text: "Sample",
    resource: SAMPLES,
    is_namespaced: true,
    programmed: Says::Condition(OUR_PROGRAMMED),
});

static WATCHED: [WatchRow; 1] =
    [WatchRow { of: KIND, resource: SAMPLES, served: Served::Always("v1"), extent: Extent::Whole, fold }];

/// Where it is set, samples are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SamplePolicy;

#[derive(Debug, PartialEq, Eq)]
struct SampleSpec {
    listener: Arc<str>,
    host: Option<Pattern>,
    service: Arc<str>,
    port: u16,
}

/// As it comes over the wire.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    host: Option<String>,
    service: String,
    port: u16,
}

fn fold(mut object: Fetched<'_>, interner: &Interner) -> (Option<Opaque>, Vec<Problem>) {
    let mut found = object.findings(KIND);
    let Wire { host, service, port } = object.spec(&mut found);
    let host = host.and_then(|host| found.check("spec.host", &host, value::pattern(&host)));
    let listener = object.annotations.get("sample.example/listener").map_or("", |listener| listener);
    let spec = SampleSpec { listener: interner.of(listener), host, service: interner.of(&service), port };
    (Some(Opaque::new(spec)), found.into_problems())
}

/// Puts one in with this host at listener `web`.
pub(crate) fn put_sample(cluster: &mut Cluster, name: ObjectName, host: &str) {
    let host = value::pattern(host).ok();
    let says = SampleSpec { listener: "web".into(), host, service: "web".into(), port: 443 };
    let meta = Meta { name, generation: 7, ..Meta::default() };
    cluster.origins.put(SAMPLES, OriginObject { meta, says: Opaque::new(says) });
}

impl Origin for Sample {
    fn kind(&self) -> Kind {
        KIND
    }

    fn section(&self) -> &'static str {
        "sample"
    }

    fn is_on(&self, policy: &Policy) -> bool {
        policy.origins.get::<SamplePolicy>().is_some()
    }

    fn watched(&self) -> &'static [WatchRow] {
        &WATCHED
    }

    fn annotations(&self) -> &'static [&'static str] {
        &["sample.example/"]
    }

    fn asks<'a>(&self, view: &AskView<'_, 'a>) -> Vec<Asking<'a>> {
        let mut all = Vec::new();
        for (name, object) in view.cluster.origins.of(SAMPLES) {
            let Some(spec) = object.says.get::<SampleSpec>() else { continue };
            let reference = BackendRef {
                group: "".into(),
                kind: "Service".into(),
                namespace: None,
                name: Arc::clone(&spec.service),
                port: Some(spec.port),
                weight: 1,
            };
            let (service, fault) = match view.references.find(KIND, &name.namespace, &reference) {
                Ok(service) => (Some(service), None),
                Err(fault) => (None, Some(fault)),
            };
            let ask = |pattern: &'a Pattern| Ask {
                part: pattern.to_string(),
                pattern,
                backend: ClaimBackend::of_service(1, service),
                fault,
            };
            let listeners = view.listeners([&spec.listener]);
            all.push(Asking { object, listeners, asks: spec.host.as_ref().map(ask).into_iter().collect() });
        }
        all
    }

    fn services(&self, object: &OriginObject) -> Vec<ObjectName> {
        let spec = object.says.get::<SampleSpec>();
        let service = |spec: &SampleSpec| {
            ObjectName::new(Arc::clone(&object.meta.name.namespace), Arc::clone(&spec.service))
        };
        spec.map(service).into_iter().collect()
    }

    fn judge(
        &self,
        _: &Cluster,
        object: &OriginObject,
        answers: &[Answer<'_, '_>],
        problems: &mut Vec<Problem>,
    ) -> Opaque {
        let object = ObjectRef { kind: KIND, name: object.meta.name.clone() };
        for Answer { ask, lost } in answers {
            let lost = lost.iter().map(|lost| {
                let owner = lost.owner.as_ref().map_or("nobody".to_owned(), ToString::to_string);
                format!("{} on {} belongs to {owner}", ask.part, lost.at)
            });
            let fault = ask.fault.iter().map(|fault| fault.what.clone());
            let all = lost.chain(fault).map(|what| Problem::warning("spec", what, "change it"));
            problems.extend(all.map(|problem| problem.object(object.clone())));
        }
        Opaque::new(())
    }

    fn shows(&self, _: &Value, _: &OriginVerdict) -> bool {
        true
    }

    fn desired_status(
        &self,
        current: &Value,
        verdict: &OriginVerdict,
        progress: &Progress,
        _: &BTreeSet<SocketAddr>,
        now: &str,
    ) -> Option<Value> {
        let judged = Judged { generation: verdict.generation, now };
        let programmed = programmed(OUR_PROGRAMMED, &verdict.programmable, progress);
        let conditions = merge(current.get("conditions"), [&programmed], judged);
        changed(current, [("conditions", conditions)])
    }

    fn left(&self, current: &Value, _: &BTreeSet<SocketAddr>) -> Option<Value> {
        service::left(current)
    }

    fn withdrawn(
        &self,
        _: &Cluster,
        _: &OriginObject,
        current: &Value,
        ours: &BTreeSet<SocketAddr>,
        _: &str,
    ) -> Option<Value> {
        self.left(current, ours)
    }
}
