//! Flags of the port of `/metrics`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::http_server::Access;

/// The flags.
#[derive(Debug, clap::Args)]
pub(super) struct MetricsAccess {
    /// Addresses of the port, separated by commas; none: all of the host.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    metrics_address: Vec<IpAddr>,
    /// Networks whose hosts may connect to the port, separated by commas; none: all. The host itself always may.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    metrics_source: Vec<IpNet>,
}

impl From<MetricsAccess> for Access {
    fn from(flags: MetricsAccess) -> Self {
        Self { addresses: flags.metrics_address, sources: flags.metrics_source }
    }
}
