//! Objects of the table of origins.

use super::{Judged, Round};
use crate::model::{ListenerSpec, ObjectName, ObjectRef, Verdicts};
use crate::origins::{self, Origin};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;

impl Round<'_, '_> {
    pub(super) fn origins(&mut self, verdicts: &Verdicts) {
        let listeners = self.judge.file.listeners.iter();
        let ours: BTreeSet<SocketAddr> = listeners.flat_map(ListenerSpec::bindings).collect();
        for origin in origins::all() {
            for (name, _) in self.view.cluster.origins.of(origin.kind().resource()) {
                self.origin(origin, name, verdicts, &ours);
            }
        }
    }

    fn origin(
        &mut self,
        origin: &dyn Origin,
        name: &ObjectName,
        verdicts: &Verdicts,
        ours: &BTreeSet<SocketAddr>,
    ) {
        let object = ObjectRef { kind: origin.kind(), name: name.clone() };
        let (last, now) = (self.judge.last.origins.get(&object), self.view.now);
        let Some(verdict) = verdicts.origins.get(&object) else {
            let is_same = last.is_none();
            self.one(object, is_same, Judged::default(), |current| origin.left(current, ours));
            return;
        };
        let is_same = last == Some(verdict);
        let shows = |status: &Value| origin.shows(status, verdict);
        let progress = self.progress_since(&object, &verdict.programmable, verdict.generation, shows);
        let judged = Judged { progress: Some(progress.clone()), ..Judged::default() };
        self.one(object, is_same, judged, |current| {
            origin.desired_status(current, verdict, &progress, ours, now)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Judge;
    use super::super::tests::view;
    use super::*;
    use crate::controller::claims::Claims;
    use crate::model::Protocol;
    use crate::origins::tests::{KIND, SamplePolicy, put_sample};
    use crate::settle::tests::{Scene, name};
    use crate::sources::kubernetes::StoredStatus;
    use serde_json::json;

    #[test]
    fn the_status_of_an_object_follows_its_verdict_and_ends_with_it() {
        let mut scene = Scene::new();
        scene.file_listener("web", Protocol::Tls, &["192.0.2.200"], 443, None);
        put_sample(scene.cluster(), name("a/one"), "x.example");
        scene.cluster().policy.origins.set(SamplePolicy);
        let object = ObjectRef { kind: KIND, name: name("a/one") };
        let served = scene.cluster().clone();
        scene.cluster().policy.origins = Default::default();
        let left = scene.cluster().clone();
        let mut facts = scene.facts;
        facts.cluster = None;
        let mut this = Judge::new(facts);
        let mut written = |cluster, version: &str, status: &Value| {
            let stored = StoredStatus {
                resource_version: version.to_owned(),
                uid: "u".to_owned(),
                status: status.clone(),
            };
            let judged = this.judge(&view(cluster, &|_| Some(&stored)), &mut Claims::default());
            let mut of_it = judged.writes.into_iter().filter(|(of, _)| *of == object);
            of_it.next().map(|(_, write)| write.map(|write| write.status))
        };
        let first = written(&served, "1", &json!({})).unwrap().unwrap();
        assert_eq!(first["conditions"][0]["type"], "vestibule.dev/Programmed", "{first}");
        assert_eq!(first["conditions"][0]["observedGeneration"], 7, "{first}");
        assert_eq!(written(&served, "2", &first), Some(None), "it says all");
        assert_eq!(written(&served, "2", &first), None, "nothing has changed");
        assert_eq!(written(&left, "2", &first), Some(Some(json!({"conditions": null}))));
        assert_eq!(written(&left, "3", &json!({})), Some(None));
    }
}
