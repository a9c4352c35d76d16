//! Whose an object is: an identity that several claims share, and that limits will be counted by. It begins with the namespace; the
//! namespace's label may replace that, and an object's own label only refines it, so that no tenant can be another.

use crate::model::{Cluster, Meta, ObjectRef, Problem, TENANT, Verdicts};
use crate::origins;
use std::sync::Arc;

/// The most bytes of a tenant: those of a label's value.
const BYTES_MAX: usize = 63;

/// Returns the tenant of an object.
pub(super) fn of(cluster: &Cluster, meta: &Meta) -> Arc<str> {
    let base = base(cluster, meta);
    match &meta.tenant {
        Some(part) if is_part(base, part) => format!("{base}/{part}").into(),
        _ => Arc::clone(base),
    }
}

/// Reports labels of objects of ours that cannot be used.
pub(super) fn report(cluster: &Cluster, verdicts: &Verdicts, problems: &mut Vec<Problem>) {
    let all = origins::kinds().flat_map(|kind| cluster.metas(kind).map(move |meta| (kind, meta)));
    for (kind, meta) in all {
        let Some(part) = &meta.tenant else { continue };
        let base = base(cluster, meta);
        let object = ObjectRef { kind, name: meta.name.clone() };
        if !part.is_empty() && !is_part(base, part) && verdicts.contains(&object) {
            let what = format!(
                "is too long behind {base}: a tenant has at most {BYTES_MAX} bytes, and is {base} alone"
            );
            let field = format!("metadata.labels[{TENANT}]");
            let problem =
                Problem::warning(field, what, "shorten it, or the label of the namespace").value(part);
            problems.push(problem.object(object));
        }
    }
}

/// Returns what the namespace says: only who may write namespaces can write its label.
fn base<'a>(cluster: &'a Cluster, meta: &'a Meta) -> &'a Arc<str> {
    let namespace = &meta.name.namespace;
    let label = cluster.namespaces.labels.get(namespace).and_then(|labels| labels.get(TENANT));
    label.filter(|label| !label.is_empty()).unwrap_or(namespace)
}

fn is_part(base: &str, part: &str) -> bool {
    !part.is_empty() && base.len() + 1 + part.len() <= BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settle::tests::Scene;
    use expect_test::expect;

    #[test]
    fn a_namespace_may_be_of_another_tenant_and_an_object_of_a_part_of_it() {
        let mut scene = Scene::new();
        let label = |value: &str| [(Arc::from(TENANT), Arc::from(value))].into();
        scene.cluster().namespaces.labels.insert("b".into(), Arc::new(label("acme")));
        scene.cluster().namespaces.labels.insert("c".into(), Arc::new(label("")));
        for (at, object) in ["a/gw", "b/gw", "c/gw", "b/part", "a/long", "a/empty"].into_iter().enumerate() {
            let address = format!("192.0.2.{}", at + 1);
            let gateway = scene.gateway(object, 1, &address, &["l TLS:443"]);
            gateway.meta.tenant = match object {
                "b/part" => Some("blue".into()),
                "a/long" => Some("x".repeat(62).into()),
                "a/empty" => Some("".into()),
                _ => None,
            };
        }
        let compiled = scene.compiled();
        let tenants: Vec<String> = compiled
            .claims
            .iter()
            .filter_map(|claim| Some(format!("{} {}", claim.origin.object()?.name, claim.tenant.as_deref()?)))
            .collect();
        assert_eq!(tenants, ["a/empty a", "a/gw a", "a/long a", "b/gw acme", "b/part acme/blue", "c/gw c"]);
        expect![[r#"
            warning: Gateway a/long: metadata.labels[vestibule.dev/tenant]: is too long behind a: a tenant has at most 63 bytes, and is a alone (value "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"); shorten it, or the label of the namespace"#]]
        .assert_eq(&scene.problems());
    }
}
