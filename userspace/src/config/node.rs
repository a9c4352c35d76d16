//! The file as a tree with lines. Read only to find the line of a problem, and errors in the shape.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Budget, Options, Spanned};
use std::fmt;

/// A value and its first line, counted from 1.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u32,
    pub(super) value: Value,
}

/// YAML and JSON values.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Whole(i64),
    /// A number that is not an integer, or too large, as text.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// Keys with their lines, in file order, including repeated ones.
    Table(Vec<(String, u32, Node)>),
}

/// The deepest nesting that is accepted; the format needs five. Deeper nesting would only use up the stack.
const DEPTH_MAX: usize = 16;

/// Reads YAML or JSON (which is YAML).
pub(super) fn read(text: &str) -> Result<Node, serde_saphyr::Error> {
    let mut options = options();
    options.duplicate_keys = DuplicateKeyPolicy::PassThrough;
    serde_saphyr::from_str_with_options::<Spanned<Value>>(text, options).map(Node::from)
}

/// The parser's options: without its size limits, which 10,000 routes exceed. Depth and aliases stay limited.
pub(super) fn options() -> Options {
    let mut budget = Budget::default();
    budget.max_events = usize::MAX;
    budget.max_nodes = usize::MAX;
    budget.max_total_scalar_bytes = usize::MAX;
    budget.max_aliases = 100_000;
    budget.max_depth = DEPTH_MAX;
    budget.flow_nesting_limit = DEPTH_MAX;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.with_snippet = false;
    options
}

impl Node {
    /// Returns the line of the value at a path such as `routes[3].hostnames[0]`, or of its nearest parent.
    pub(super) fn line_of(&self, path: &str) -> u32 {
        let mut at = self;
        let mut line = self.line;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match &at.value {
                Value::Table(entries) => {
                    entries.iter().rfind(|(key, _, _)| key == step).map(|(_, line, node)| (*line, node))
                }
                Value::List(items) => step
                    .strip_suffix(']')
                    .and_then(|index| items.get(index.parse::<usize>().ok()?))
                    .map(|node| (node.line, node)),
                Value::Null | Value::Bool(_) | Value::Whole(_) | Value::Number(_) | Value::Text(_) => None,
            };
            let Some((next_line, next_node)) = next else { break };
            (line, at) = (next_line, next_node);
        }
        line
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self { line: u32::try_from(spanned.referenced.line()).unwrap_or(u32::MAX), value: spanned.value }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Whole(value) => write!(f, "{value}"),
            Self::Number(value) | Self::Text(value) => f.write_str(value),
            Self::List(items) => write!(f, "a list of {}", items.len()),
            Self::Table(entries) => {
                let keys: Vec<_> = entries.iter().map(|(key, _, _)| key.as_str()).collect();
                write!(f, "{{{}}}", keys.join(", "))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Whole(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or_else(|_| Value::Number(value.to_string()), Value::Whole))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Value>>()? {
            items.push(item.into());
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Spanned<String>, Spanned<Value>>()? {
            let line = u32::try_from(key.referenced.line()).unwrap_or(u32::MAX);
            entries.push((key.value, line, value.into()));
        }
        Ok(Value::Table(entries))
    }
}
