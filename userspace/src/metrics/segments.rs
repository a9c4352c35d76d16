use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::model::Segments;

/// What the thread that announces counted a second ago.
#[derive(Debug)]
pub(super) struct FromSegments(pub(super) Segments);

impl Collector for FromSegments {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let segments = self.0.get();
        if segments.is_empty() {
            return Ok(());
        }
        let gauge = |count: u64| ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
        let help = "Addresses that may be announced on the segment of a device, by who does";
        let mut vips = encoder.encode_descriptor("vips", help, None, MetricType::Gauge)?;
        for on in &*segments {
            let owners = [("here", on.here), ("elsewhere", on.elsewhere), ("nobody", on.nobody)];
            for (owner, count) in owners {
                let labels = [("device", &*on.device), ("owner", owner)];
                gauge(count).encode(vips.encode_family(&labels)?)?;
            }
        }
        let help = "Addresses that a host answers for which is no node of the cluster";
        let mut foreign = encoder.encode_descriptor("address_conflicts", help, None, MetricType::Gauge)?;
        for on in &*segments {
            gauge(on.foreign).encode(foreign.encode_family(&[("device", &*on.device)])?)?;
        }
        let help = "Other nodes that may announce addresses on the segment of a device, by whether heartbeats are received";
        let mut candidates = encoder.encode_descriptor("candidates", help, None, MetricType::Gauge)?;
        for on in &*segments {
            for (state, count) in [("alive", on.alive), ("unheard", on.unheard)] {
                let labels = [("device", &*on.device), ("state", state)];
                gauge(count).encode(candidates.encode_family(&labels)?)?;
            }
        }
        let help =
            "Other nodes of the segment that are silent about their addresses, for their agents are dead";
        let mut gates = encoder.encode_descriptor("gates_closed", help, None, MetricType::Gauge)?;
        for on in &*segments {
            gauge(on.closed).encode(gates.encode_family(&[("device", &*on.device)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{registry, text};
    use crate::model::SegmentCounts;

    #[test]
    fn what_a_node_counts_on_each_segment_is_a_gauge() {
        let (mut registry, segments) = (registry(), Segments::default());
        registry.register_collector(Box::new(FromSegments(segments.clone())));
        assert!(!text(&registry).contains("vips"), "a node without segments has none");
        let (here, elsewhere, nobody, foreign) = (3, 4, 1, 2);
        let (alive, unheard, closed) = (5, 6, 7);
        let device = "eth0".into();
        segments.set(vec![SegmentCounts {
            device,
            here,
            elsewhere,
            nobody,
            foreign,
            alive,
            unheard,
            closed,
        }]);
        let text = text(&registry);
        for line in [
            "vestibule_vips{device=\"eth0\",owner=\"here\"} 3",
            "vestibule_vips{device=\"eth0\",owner=\"elsewhere\"} 4",
            "vestibule_vips{device=\"eth0\",owner=\"nobody\"} 1",
            "vestibule_address_conflicts{device=\"eth0\"} 2",
            "vestibule_candidates{device=\"eth0\",state=\"alive\"} 5",
            "vestibule_candidates{device=\"eth0\",state=\"unheard\"} 6",
            "vestibule_gates_closed{device=\"eth0\"} 7",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
