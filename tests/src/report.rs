//! Reads what `vestibule ... -o json` prints.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// Parses one JSON object per line, or one array of objects.
pub fn objects(text: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value.context("not JSON")? {
            Value::Array(values) => found.extend(values),
            value => found.push(value),
        }
    }
    Ok(found)
}

/// Returns the packets per reason, by the reason's name (such as `RouteNone`).
pub fn reasons(text: &str) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for object in objects(text)? {
        let number = object.get("number").and_then(Value::as_u64).context("no `number`")?;
        let packets = object.get("packets").and_then(Value::as_u64).context("no `packets`")?;
        let reason = common::reason::Reason::ALL.iter().find(|reason| u64::from(**reason as u32) == number);
        let reason = reason.with_context(|| format!("no reason has the number {number}"))?;
        counts.insert(reason.name().to_owned(), packets);
    }
    Ok(counts)
}
