//! `vestibule vips`.

use std::net::IpAddr;

use anyhow::Result;
use serde_json::json;

use super::Format;
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::model::Node;

pub(super) fn show(pins: &Pins, format: Format) -> Result<()> {
    let mut announced = read::announced(pins)?;
    let epochs = read::bids(pins)?;
    announced.sort_by_key(|(key, _)| (IpAddr::from(key.address), key.device));
    // Reads the caller's network namespace. It is the instance's, unless several instances run.
    let node = Node::look()?;
    let rows: Vec<Row> = announced
        .iter()
        .map(|(key, announced)| {
            let (address, device) = (IpAddr::from(key.address).to_string(), node.name(key.device));
            let owner = if announced.is_here() { "this node" } else { "elsewhere" };
            let link = written(announced.link);
            // One that is alone has none.
            let epoch = epochs.get(key).filter(|_| announced.is_here());
            Row {
                json: json!({
                    "address": address, "device": device, "ifindex": key.device, "owner": owner,
                    "linkAddress": link, "epoch": epoch,
                })
                .into(),
                cells: vec![
                    address,
                    device,
                    owner.to_owned(),
                    link,
                    epoch.map_or_else(|| "-".to_owned(), u64::to_string),
                ],
            }
        })
        .collect();
    print::rows(&["address", "device", "owner", "link address", "epoch"], &rows, format)
}

fn written(link: [u8; 6]) -> String {
    link.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_addresses_are_written_as_ip_does() {
        assert_eq!(written([2, 0, 0x5e, 0xa, 0xff, 1]), "02:00:5e:0a:ff:01");
    }
}
