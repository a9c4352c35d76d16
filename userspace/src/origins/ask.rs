//! What objects ask for, and what became of it.

use crate::model::claim::ClaimBackend;
use crate::model::{Cluster, Desired, Origin, OriginObject, Pattern, Protocol};
use crate::settle::references::{Fault, References};
use std::net::SocketAddr;
use std::sync::Arc;

/// What asks are made from.
pub(crate) struct AskView<'v, 'a> {
    /// The objects.
    pub(crate) cluster: &'a Cluster,
    /// The chart's listeners.
    pub(crate) file: &'v Desired,
    /// Finds Services, and says what is wrong with a reference.
    pub(crate) references: &'v References<'a>,
}

impl AskView<'_, '_> {
    /// Returns the indices of the chart's TLS listeners of these names.
    pub(crate) fn listeners<'n>(&self, names: impl IntoIterator<Item = &'n Arc<str>>) -> Arc<[usize]> {
        let named = |name: &Arc<str>| {
            let all = &mut self.file.listeners.iter();
            all.position(|listener| listener.name == *name && listener.protocol == Protocol::Tls)
        };
        names.into_iter().filter_map(named).collect()
    }
}

/// An object that is served.
pub(crate) struct Asking<'a> {
    /// Which.
    pub(crate) object: &'a OriginObject,
    /// Indices of the chart's listeners where it asks.
    pub(crate) listeners: Arc<[usize]>,
    /// What it asks for at each of them.
    pub(crate) asks: Vec<Ask<'a>>,
}

/// One set of backends, and the names that lead there.
pub(crate) struct Ask<'a> {
    /// What people know it by, unique in its object: with the listener's name, the part of its Claims, and the end of its route's name.
    pub(crate) part: String,
    /// The names.
    pub(crate) pattern: &'a Pattern,
    /// Where it leads. Without a Service, connections are refused.
    pub(crate) backend: ClaimBackend,
    /// Why it leads nowhere.
    pub(crate) fault: Option<Fault>,
}

/// What became of an ask.
pub(crate) struct Answer<'s, 'a> {
    /// The ask.
    pub(crate) ask: &'s Ask<'a>,
    /// What it has not.
    pub(crate) lost: Vec<Lost>,
}

/// Something that an ask has not.
pub(crate) struct Lost {
    /// Where.
    pub(crate) at: SocketAddr,
    /// Who has it; `None`: no tenant may have it.
    pub(crate) owner: Option<Origin>,
}
