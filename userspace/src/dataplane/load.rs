//! Loads the programs and maps of the embedded object into the kernel.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use aya::programs::{ProgramError, ProgramFd, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use common::maps::{self, ABI_VERSION};

use super::memory::{self, Memory};
use super::pin::{PinError, Pins, program};
use super::sizes::{self, Sizes};
use super::syscall;
use super::table::{Table, TableError};

/// The eBPF programs, as built by `build.rs`.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// The number of lines shown of a verifier log. Its end contains the reason for the refusal.
const LOG_LINES: usize = 20;

/// Why the programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Another version's maps are pinned.
    #[error(
        "the maps in {folder} have ABI version {found}, this vestibule has {ABI_VERSION}; nothing was touched, and what is \
         in the kernel serves on. Run the vestibule they belong to. To change over, let its connections end by its \
         `vestibule drain`, then `vestibule detach` (which ends those that are left) and start again. In a cluster: Other maps in \
         deploy/README.md"
    )]
    Abi {
        /// The pinned version; 0 = none.
        found: u32,
        /// The pin folder.
        folder: String,
    },
    /// The size of a pinned map differs from the settings.
    #[error(
        "map {map} is pinned with {pinned} entries, but {setting} asks for {wanted}; nothing was touched. \
         Sizes are fixed as long as the maps are pinned: put {setting} back, or `vestibule detach` (which ends all \
         connections) and start again"
    )]
    Size {
        /// The map's name.
        map: &'static str,
        /// Its entries as pinned.
        pinned: u32,
        /// Its entries according to the settings.
        wanted: u32,
        /// The field of `settings` that sizes it.
        setting: &'static str,
    },
    /// The maps are larger than what the machine can give.
    #[error(
        "the maps take {} MiB as soon as they are made, and {} MiB are available; nothing was made. Give the node more \
         memory, or lower maxFlows, which takes {} MiB of it (`vestibule check` says how much)",
        memory.at_once >> 20, available >> 20, memory.flows >> 20
    )]
    Memory {
        /// What they take.
        memory: Memory,
        /// Bytes that are available.
        available: u64,
    },
    /// The kernel refused a program.
    #[error("the kernel refuses program {program}: {source}\n{log}")]
    Verifier {
        /// The program's name.
        program: &'static str,
        /// The error of the system call.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The object does not contain this program.
    #[error("this build holds no program {0}")]
    NoProgram(&'static str),
    /// An error about the pin folder.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// An error about a map.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An error reported by aya.
    #[error("loading the programs: {0}")]
    Object(#[from] aya::EbpfError),
    /// An error reported by aya about a program.
    #[error("program {program}: {source}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// The error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The programs in the kernel.
#[derive(Debug)]
pub struct Programs {
    object: Ebpf,
    pins: Pins,
}

impl Programs {
    /// Loads the programs; opens the pinned maps, or creates and pins them. Pinned maps of another version or
    /// size are refused before anything is changed.
    pub fn load(pins: &Pins, sizes: Sizes) -> Result<Self, LoadError> {
        check_version(pins)?;
        check_sizes(pins, sizes)?;
        if !pins.holds_maps()
            && let Ok(memory) = memory::of(OBJECT, sizes)
        {
            check_memory(memory, memory::available())?;
        }
        let mut loader = EbpfLoader::new();
        for (map, entries) in sizes.maps() {
            loader.map_max_entries(map, entries);
        }
        for map in maps::name::ALL {
            loader.map_pin_path(map, pins.map(map));
        }
        let mut object = loader.load(OBJECT)?;
        load_program(&mut object, program::INGRESS)?;
        load_program(&mut object, program::EXPIRE)?;
        Table::<u32, u32>::open(pins.folder(), maps::name::ABI)?.put(&0, &ABI_VERSION)?;
        Ok(Self { object, pins: pins.clone() })
    }

    /// Pins the programs, replacing those of the previous start.
    pub fn pin(&mut self) -> Result<(), LoadError> {
        for name in [program::INGRESS, program::EXPIRE] {
            let folder = self.pins.programs();
            let next = folder.join(format!("{name}_next"));
            // Left over if an earlier start was killed at this point.
            remove_if_there(&next)?;
            let failed = |source| LoadError::Program { program: name, source };
            classifier(&mut self.object, name)?.pin(&next).map_err(|e| failed(Box::new(e)))?;
            // The rename is atomic: the program is always pinned.
            fs::rename(&next, folder.join(name)).map_err(PinError::io(&next, "rename"))?;
        }
        Ok(())
    }

    /// The program attached to devices.
    pub(super) fn ingress(&mut self) -> Result<&mut SchedClassifier, LoadError> {
        classifier(&mut self.object, program::INGRESS)
    }

    /// The XDP program. It is loaded when a device is to have it for the first time.
    pub(super) fn front(&mut self) -> Result<&ProgramFd, LoadError> {
        let name = program::FRONT;
        let failed = |source: ProgramError| LoadError::Program { program: name, source: Box::new(source) };
        let front = self.object.program_mut(name).ok_or(LoadError::NoProgram(name))?;
        let front: &mut Xdp = front.try_into().map_err(failed)?;
        if front.fd().is_err() {
            front.load().map_err(|error| refused(name, error))?;
        }
        front.fd().map_err(failed)
    }

    /// Returns the id of the XDP program; `None`: it is not loaded, or its id is not known.
    pub(crate) fn front_id(&self) -> Option<u32> {
        self.object.program(program::FRONT)?.info().ok().map(|info| info.id())
    }
}

fn remove_if_there(path: &Path) -> Result<(), PinError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PinError::io(path, "remove")(e)),
        _ => Ok(()),
    }
}

fn classifier<'a>(object: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, LoadError> {
    let program = object.program_mut(name).ok_or(LoadError::NoProgram(name))?;
    program.try_into().map_err(|e: ProgramError| LoadError::Program { program: name, source: Box::new(e) })
}

fn load_program(object: &mut Ebpf, name: &'static str) -> Result<(), LoadError> {
    classifier(object, name)?.load().map_err(|error| refused(name, error))
}

fn refused(program: &'static str, error: ProgramError) -> LoadError {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            LoadError::Verifier { program, source: io_error, log: tail(&verifier_log.to_string()) }
        }
        other => LoadError::Program { program, source: Box::new(other) },
    }
}

/// Returns the last lines of a verifier log, without empty lines.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(LOG_LINES);
    let mut text = String::new();
    if skipped > 0 {
        text = format!("  ({skipped} lines of the verifier's log left out)\n");
    }
    for line in &lines[skipped..] {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Returns the version of the pinned maps; 0: none is written; `None`: no map is pinned.
fn pinned_version(pins: &Pins) -> Result<Option<u32>, LoadError> {
    match Table::<u32, u32>::open(pins.folder(), maps::name::ABI) {
        Ok(table) => Ok(Some(table.look_up(&0)?.unwrap_or(0))),
        Err(TableError::Missing { .. }) => Ok(pins.holds_maps().then_some(0)),
        Err(error) => Err(error.into()),
    }
}

/// Refuses maps of another version. Maps of a start that was killed before it attached anything are removed.
fn check_version(pins: &Pins) -> Result<(), LoadError> {
    match pinned_version(pins)? {
        None | Some(ABI_VERSION) => Ok(()),
        Some(0) if pins.linked_devices()?.is_empty() => {
            for map in maps::name::ALL {
                remove_if_there(&pins.map(map))?;
            }
            Ok(())
        }
        Some(found) => Err(LoadError::Abi { found, folder: pins.folder().display().to_string() }),
    }
}

/// Returns an error unless maps of this version are pinned. For the daemon and commands that read maps.
pub fn need_version(pins: &Pins) -> Result<(), LoadError> {
    match pinned_version(pins)? {
        Some(ABI_VERSION) => Ok(()),
        Some(found) => Err(LoadError::Abi { found, folder: pins.folder().display().to_string() }),
        None => Err(PinError::Nothing(pins.folder().into()).into()),
    }
}

/// Returns the sizes of the pinned maps; `None`: none are pinned.
pub fn pinned_sizes(pins: &Pins) -> Result<Option<Sizes>, LoadError> {
    let entries = |map| -> Result<Option<u32>, LoadError> {
        let path = pins.map(map);
        if !path.exists() {
            return Ok(None);
        }
        let fd = syscall::open_pinned(&path).map_err(PinError::io(&path, "open"))?;
        Ok(Some(syscall::map_info(&fd.as_fd()).map_err(PinError::io(&path, "info"))?.max_entries))
    };
    let sized =
        (entries(maps::name::FLOWS)?, entries(maps::name::ROUTES_EXACT)?, entries(maps::name::PENDING)?);
    let (Some(flows), Some(names), Some(hellos)) = sized else { return Ok(None) };
    Ok(Some(Sizes { flows, names, hellos }))
}

/// Returns an error if the size of a pinned map differs from the settings.
pub fn check_sizes(pins: &Pins, sizes: Sizes) -> Result<(), LoadError> {
    for (map, wanted) in sizes.maps() {
        let path = pins.map(map);
        if !path.exists() {
            continue;
        }
        let fd = syscall::open_pinned(&path).map_err(PinError::io(&path, "open"))?;
        let pinned = syscall::map_info(&fd.as_fd()).map_err(PinError::io(&path, "info"))?.max_entries;
        if pinned != wanted {
            return Err(LoadError::Size { map, pinned, wanted, setting: sizes::setting(map) });
        }
    }
    Ok(())
}

/// Refuses maps that the machine has no memory for: the kernel would end other processes for them. Where it does not say what is
/// available, it refuses them itself.
fn check_memory(memory: Memory, available: Option<u64>) -> Result<(), LoadError> {
    match available {
        Some(available) if memory.at_once > available => Err(LoadError::Memory { memory, available }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_the_machine_cannot_hold_are_refused_with_both_figures() {
        let memory = Memory { at_once: 5 << 30, full: 7 << 30, flows: 4 << 30 };
        assert!(check_memory(memory, Some(5 << 30)).is_ok() && check_memory(memory, None).is_ok());
        let refused = check_memory(memory, Some(3 << 30)).unwrap_err().to_string();
        for part in
            ["take 5120 MiB", "3072 MiB are available", "nothing was made", "maxFlows, which takes 4096 MiB"]
        {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_verifier_log_is_cut_to_its_end() {
        let log: String = (0..100).map(|i| format!("line {i}\n")).collect();
        let cut = tail(&log);
        assert!(
            cut.contains("80 lines") && cut.ends_with("line 99\n") && !cut.contains("line 79\n"),
            "{cut}"
        );
        assert_eq!(tail("one\n\ntwo"), "  one\n  two\n");
    }

    #[test]
    fn the_object_holds_all_programs() {
        for name in [program::INGRESS, program::EXPIRE, program::FRONT] {
            assert!(OBJECT.windows(name.len()).any(|w| w == name.as_bytes()), "{name}");
        }
    }
}
