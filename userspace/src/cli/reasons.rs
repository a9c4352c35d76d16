//! `vestibule reasons`.

use anyhow::Result;
use serde_json::json;

use super::Format;
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::{load, read};

pub(super) fn show(pins: &Pins, format: Format, all: bool) -> Result<()> {
    load::need_version(pins)?;
    let counted = read::reasons(pins)?;
    let rows: Vec<Row> = counted
        .into_iter()
        .filter(|(_, packets)| all || *packets > 0)
        .map(|(reason, packets)| {
            let number = reason as u32;
            Row {
                cells: vec![
                    number.to_string(),
                    reason.stage().into(),
                    reason.label().into(),
                    packets.to_string(),
                    reason.text().into(),
                ],
                json: json!({
                    "number": number, "stage": reason.stage(), "reason": reason.label(),
                    "name": reason.name(), "packets": packets, "text": reason.text(),
                })
                .into(),
            }
        })
        .collect();
    print::rows(&[">number", "stage", "reason", ">packets", "text"], &rows, format)
}
