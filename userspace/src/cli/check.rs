//! `vestibule check`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::print;
use crate::dataplane::OBJECT;
use crate::dataplane::memory::{self, Memory};
use crate::model::{NodeFacts, Settings};
use crate::net::sysctl;
use crate::sources::check;

pub(super) fn show(path: &Path, is_chart: bool) -> Result<ExitCode> {
    let report = if is_chart {
        check::check_chart(path)
    } else {
        let node = NodeFacts { local_ports: sysctl::local_port_range(), ..NodeFacts::default() };
        check::check(path, &node)
    };
    print::line(&report)?;
    if !is_chart && !report.is_usable() && check::check_chart(path).is_usable() {
        print::line(&"as the chart's file it can be used: `vestibule check --chart`")?;
    }
    if let Some(settings) = report.settings() {
        print::line(&text(memory::of(OBJECT, settings.into())?, settings, memory::available()))?;
    }
    Ok(if report.is_usable() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says what the maps take. The file may be for another machine, so that too little is a warning.
fn text(memory: Memory, settings: &Settings, available: Option<u64>) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let Memory { at_once, full, flows } = memory;
    let text = format!(
        "memory of the kernel's maps: {} MiB as soon as they are made, {} MiB of it for maxFlows {}; {} MiB when all are full",
        mib(at_once),
        mib(flows),
        settings.max_flows,
        mib(full)
    );
    match available {
        Some(available) if available < at_once => format!(
            "{text}\nwarning: this machine has {} MiB available: a start on it is refused; lower maxFlows or add memory",
            available >> 20
        ),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_on_this_machine_is_a_warning() {
        let memory = Memory { at_once: 5 << 30, full: 7 << 30, flows: (4 << 30) + 1 };
        let settings = Settings { max_flows: 16_777_216, ..Settings::default() };
        let enough = "memory of the kernel's maps: 5120 MiB as soon as they are made, 4097 MiB of it for maxFlows 16777216; \
                      7168 MiB when all are full";
        assert_eq!(text(memory, &settings, Some(5 << 30)), enough);
        assert_eq!(text(memory, &settings, None), enough);
        let little = text(memory, &settings, Some(3 << 30));
        assert!(
            little.starts_with(enough) && little.contains("\nwarning: this machine has 3072 MiB available"),
            "{little}"
        );
    }
}
