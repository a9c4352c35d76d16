//! What a watch asks the API server for.

use kube::Resource;

/// Objects of one kind, or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Where the API serves them.
    pub(super) path: String,
    /// Label selector; `None`: all.
    pub(super) labels: Option<String>,
    /// Field selector; `None`: all.
    pub(super) fields: Option<String>,
    /// Whether metadata is all that is read.
    pub(super) is_metadata_only: bool,
}

impl Target {
    /// All objects of a kind, of this namespace where the kind has namespaces.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        Self { path: K::url_path(&(), namespace), labels: None, fields: None, is_metadata_only: false }
    }

    /// Only objects with these labels.
    pub(crate) fn labelled(self, selector: &str) -> Self {
        Self { labels: Some(selector.to_owned()), ..self }
    }

    /// Only the object with this name.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { fields: Some(format!("metadata.name={name}")), ..self }
    }
}
