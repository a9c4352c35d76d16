//! The fields that the file may have. Reports every unknown, repeated or mistyped field, not only the first
//! one. Used only when serde has refused the file.

use super::node::{Node, Value};
use crate::model::Problem;
use crate::model::problem::closest;
use serde_json::Value as Json;

/// The type of a value.
pub(super) enum Shape {
    Text,
    Whole,
    Bool,
    List(&'static Shape),
    Table(&'static [(&'static str, Shape)]),
}

/// The shape of the whole file. It has the same fields as the structures of `raw`.
pub(super) const FILE: Shape = Shape::Table(&[
    ("apiVersion", Shape::Text),
    ("kind", Shape::Text),
    ("settings", Shape::Table(SETTINGS)),
    ("listeners", Shape::List(&Shape::Table(LISTENER))),
    ("routes", Shape::List(&Shape::Table(ROUTE))),
]);

pub(super) const SETTINGS: &[(&str, Shape)] = &[
    ("sourceAddresses", Shape::List(&Shape::Text)),
    ("sourcePorts", Shape::Text),
    ("idleTimeout", Shape::Text),
    ("helloTimeout", Shape::Text),
    ("maxFlows", Shape::Whole),
    ("maxNames", Shape::Whole),
    ("maxHellos", Shape::Whole),
    ("flowsPerRoute", Shape::Whole),
    ("flowsPerSource", Shape::Whole),
    ("connectingPerSource", Shape::Whole),
    ("l2", Shape::Table(L2)),
    ("xdpDevices", Shape::List(&Shape::Text)),
    ("nodeClients", Shape::Bool),
];

const L2: &[(&str, Shape)] =
    &[("enabled", Shape::Bool), ("announceRate", Shape::Whole), ("refreshRate", Shape::Whole)];

pub(super) const LISTENER: &[(&str, Shape)] = &[
    ("name", Shape::Text),
    ("addresses", Shape::List(&Shape::Text)),
    ("port", Shape::Whole),
    ("protocol", Shape::Text),
    ("defaultRoute", Shape::Text),
];

pub(super) const ROUTE: &[(&str, Shape)] = &[
    ("name", Shape::Text),
    ("listeners", Shape::List(&Shape::Text)),
    ("hostnames", Shape::List(&Shape::Text)),
    ("sourceRanges", Shape::List(&Shape::Text)),
    ("sessionAffinity", Shape::Text),
    ("externalTrafficPolicy", Shape::Text),
    ("backends", Shape::List(&Shape::Table(BACKEND))),
];

const BACKEND: &[(&str, Shape)] =
    &[("address", Shape::Text), ("port", Shape::Whole), ("weight", Shape::Whole)];

/// Compares `node` with `shape`. Returns the part that fits, so that the rest of the file can still be checked.
pub(super) fn fit(node: &Node, shape: &Shape, path: &str, problems: &mut Vec<Problem>) -> Json {
    match (shape, &node.value) {
        (_, Value::Null) => Json::Null,
        (Shape::Text, Value::Text(text) | Value::Number(text)) => Json::String(text.clone()),
        (Shape::Text, Value::Whole(number)) => Json::String(number.to_string()),
        (Shape::Whole, Value::Whole(number)) => Json::from(*number),
        (Shape::Bool, Value::Bool(value)) => Json::from(*value),
        (Shape::List(inner), Value::List(items)) => {
            let each = items.iter().enumerate();
            Json::Array(each.map(|(i, item)| fit(item, inner, &format!("{path}[{i}]"), problems)).collect())
        }
        (Shape::Table(fields), Value::Table(entries)) => table(entries, fields, path, problems),
        _ => {
            problems.push(mistyped(node, shape, path));
            Json::Null
        }
    }
}

fn table(
    entries: &[(String, u32, Node)],
    fields: &[(&str, Shape)],
    path: &str,
    problems: &mut Vec<Problem>,
) -> Json {
    let mut fitting = serde_json::Map::new();
    for (key, line, node) in entries {
        let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Some((_, shape)) = fields.iter().find(|(name, _)| name == key) else {
            let names = fields.iter().map(|(name, _)| *name);
            let mut problem = Problem::error(at, "unknown field", unknown_remedy(key, names));
            problem.line = Some(*line);
            problems.push(problem);
            continue;
        };
        if fitting.contains_key(key) {
            let mut problem = Problem::error(at, "the field is there twice", "keep one of them");
            problem.line = Some(*line);
            problems.push(problem);
            continue;
        }
        let value = fit(node, shape, &at, problems);
        fitting.insert(key.clone(), value);
    }
    Json::Object(fitting)
}

fn mistyped(node: &Node, shape: &Shape, path: &str) -> Problem {
    let (what, remedy) = match shape {
        Shape::Text => ("is not text", "write text in quotes"),
        Shape::Whole => ("is not a whole number", "write a whole number without quotes"),
        Shape::Bool => ("is neither true nor false", "write true or false, without quotes"),
        Shape::List(_) => ("is not a list", "write a list, also when it has one element"),
        Shape::Table(_) => ("is not a set of fields", "write fields and their values"),
    };
    let mut problem = Problem::error(path, what, remedy).value(&node.value);
    problem.line = Some(node.line);
    problem
}

fn unknown_remedy<'a>(key: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match closest(key, names.clone()) {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("the fields here are {}", names.collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{CHART, RawChart};
    use super::super::raw::RawConfig;
    use super::*;
    use serde::Deserialize;

    /// Returns a value with every field of `shape`.
    fn full(shape: &Shape) -> Json {
        match shape {
            Shape::Text => Json::from("x"),
            Shape::Whole => Json::from(1),
            Shape::Bool => Json::from(true),
            Shape::List(inner) => Json::Array(vec![full(inner)]),
            Shape::Table(fields) => {
                fields.iter().map(|(name, shape)| ((*name).to_owned(), full(shape))).collect()
            }
        }
    }

    /// Checks that the structures in `T` have exactly the fields of `shape` at each path.
    fn agree<T: Deserialize<'static> + std::fmt::Debug>(shape: &Shape, places: &[&str]) {
        let everything = full(shape);
        T::deserialize(everything.clone()).unwrap();
        for place in places {
            let mut with_unknown = everything.clone();
            let table = with_unknown.pointer_mut(place).unwrap().as_object_mut().unwrap();
            let mut ours: Vec<_> = table.keys().map(|key| format!("`{key}`")).collect();
            ours.sort();
            table.insert("unknown".to_owned(), Json::Null);
            let message = T::deserialize(with_unknown).unwrap_err().to_string();
            let (_, list) = message.split_once("expected one of ").unwrap();
            let mut theirs: Vec<_> = list.split(", ").map(str::to_owned).collect();
            theirs.sort();
            assert_eq!(ours, theirs, "{place}");
        }
    }

    #[test]
    fn the_shape_has_the_fields_of_the_structures() {
        let file = ["", "/settings", "/settings/l2", "/listeners/0", "/routes/0", "/routes/0/backends/0"];
        agree::<RawConfig<'_>>(&FILE, &file);
        let chart = ["", "/addresses", "/settings", "/probe", "/listeners/0", "/routes/0"];
        agree::<RawChart<'_>>(&CHART, &chart);
    }
}
