//! MetalLB's own samples of its objects, for tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Returns each file's name and objects, by name. `None`: they are not there, which is printed.
pub(super) fn all() -> Option<Vec<(String, Vec<Value>)>> {
    let fixtures = match std::env::var_os("VESTIBULE_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    let folder = fixtures.join("crds/metallb/samples");
    if !folder.is_dir() {
        eprintln!("SKIPPED: no samples of MetalLB; set VESTIBULE_FIXTURES to the folder that holds crds/");
        return None;
    }
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let objects = |name: &str| {
        serde_saphyr::from_multiple(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    };
    Some(names.into_iter().map(|name| (name.clone(), objects(&name))).collect())
}
