//! Preferences of L2Advertisements in the object.

use std::collections::BTreeSet;
use std::sync::Arc;

use expect_test::expect;

use super::super::{Rule, bound_preferences};
use crate::model::advertisement::AdvertisementSpec;
use crate::model::{Meta, ObjectName};

/// The API server takes no object of more than a megabyte and a half, and would refuse each later change of it, too.
#[test]
fn preferences_that_find_no_room_are_left_out_and_said() {
    let names = ["a", "b", "c"].map(|name| AdvertisementSpec {
        meta: Meta { name: ObjectName::new("metallb-system", name), ..Meta::default() },
        ..AdvertisementSpec::default()
    });
    let node: Arc<str> = "n".repeat(97).into();
    let rule = |nodes: usize| Rule {
        addresses: Vec::new(),
        nodes: BTreeSet::new(),
        interfaces: &[],
        weights: [(1, vec![&node; nodes])].into(),
    };
    let mut rules: Vec<_> = names.iter().zip([1, 3, 2].map(rule)).collect();
    let mut problems = Vec::new();
    bound_preferences(&mut rules, 300, &mut problems);
    assert_eq!([0, 1, 2].map(|at: usize| rules[at].1.weights.is_empty()), [false, true, false]);
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    expect![[r#"
        warning: L2Advertisement metallb-system/b: spec.preferredNodeSelectors: prefers nodes whose names find no room: the preferences of all L2Advertisements may have 256 KiB of them; prefer fewer nodes, or name them in spec.nodeSelectors; until then its nodes are equal"#]]
    .assert_eq(&problems.join("\n"));
}
