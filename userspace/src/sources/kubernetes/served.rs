//! How a kind comes into the cluster, and what is watched of it.

/// How a kind comes into the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Every cluster has it, in this version.
    Always(&'static str),
    /// A CRD of others brings it; versions that we read, the preferred first.
    ByDefinition(&'static [&'static str]),
}

/// What is watched of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All but its status, unless it asks for something.
    Whole,
    /// `metadata`
    Metadata,
    /// Objects with this label alone.
    Labelled(&'static str),
    /// The object of this name alone.
    Named(&'static str),
}
