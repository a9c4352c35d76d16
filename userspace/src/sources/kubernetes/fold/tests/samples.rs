//! Every object of `../shared/fixtures/crds/gateway-api`: nothing in them is unreadable, and this is what is read.

use super::super::super::interner::Interner;
use super::{defaults, interner, raw_of, yaml};
use crate::model::{Kind, Problem};
use expect_test::expect_file;
use serde_json::Value;
use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};

/// The folder of the samples, or `None` and a line on stderr.
fn folder() -> Option<PathBuf> {
    let fixtures = match std::env::var_os("VESTIBULE_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    let folder = fixtures.join("crds/gateway-api");
    if !folder.is_dir() {
        eprintln!(
            "SKIPPED: no samples of the Gateway API; set VESTIBULE_FIXTURES to the folder that holds crds/"
        );
        return None;
    }
    Some(folder)
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

/// An object folded, as text; `None`: a kind that is not read.
fn folded(object: &Value, interner: &Interner) -> Option<(String, Vec<Problem>)> {
    fn text<T: Debug>((spec, problems): (T, Vec<Problem>)) -> (String, Vec<Problem>) {
        (format!("{spec:?}"), problems)
    }
    let object = || object.clone();
    Some(match object()["kind"].as_str()? {
        "GatewayClass" => text(super::super::class(raw_of(object()), interner)),
        "Gateway" => text(super::super::gateway(raw_of(object()), interner)),
        "ListenerSet" => text(super::super::listener_set(raw_of(object()), interner)),
        "TLSRoute" => text(super::super::route(Kind::TlsRoute, raw_of(object()), interner)),
        "TCPRoute" => text(super::super::route(Kind::TcpRoute, raw_of(object()), interner)),
        "ReferenceGrant" => text(super::super::grant(raw_of(object()), interner)),
        "Namespace" => text(super::super::namespace(raw_of(object()), interner)),
        "Service" => text(super::super::service(raw_of(object()), &defaults(), interner)),
        _ => return None,
    })
}

#[test]
fn samples_are_read_without_problem() {
    let Some(folder) = folder() else { return };
    let (mut paths, interner) = (Vec::new(), interner());
    files(&folder.join("samples"), &mut paths);
    files(&folder.join("conformance"), &mut paths);
    paths.sort();
    let mut golden = String::new();
    let mut count = 0;
    for path in paths {
        let name = path.strip_prefix(&folder).unwrap().display();
        for object in yaml(&std::fs::read_to_string(&path).unwrap()) {
            let Some((text, problems)) = folded(&object, &interner) else { continue };
            assert_eq!(super::lines(&problems), Vec::<String>::new(), "{name}");
            count += 1;
            if name.to_string().starts_with("samples/") {
                writeln!(golden, "# {name}\n{} {text}\n", object["kind"].as_str().unwrap()).unwrap();
            }
        }
    }
    assert!(count > 60, "{count} objects only");
    expect_file!["samples.txt"].assert_eq(&golden);
}
