//! Objects of the kinds in the table of origins. What they say beyond their metadata, their origin alone can read.

use super::kind::Resource;
use super::object::{Meta, ObjectName};
use super::opaque::Opaque;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginObject {
    /// Name, age, generation.
    pub meta: Meta,
    /// The rest, of a type of its origin.
    pub says: Opaque,
}

/// Objects by name.
pub type ByName = BTreeMap<ObjectName, Arc<OriginObject>>;

/// All objects that origins read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginObjects(BTreeMap<Resource, ByName>);

impl OriginObjects {
    /// Returns all of a kind, in order.
    pub fn of(&self, resource: Resource) -> impl Iterator<Item = (&ObjectName, &OriginObject)> {
        self.0.get(&resource).into_iter().flatten().map(|(name, object)| (name, &**object))
    }

    /// Returns one.
    pub fn get(&self, resource: Resource, name: &ObjectName) -> Option<&OriginObject> {
        self.0.get(&resource)?.get(name).map(|object| &**object)
    }

    /// Returns those of a kind; `None`: there never was one.
    pub fn table(&mut self, resource: Resource) -> Option<&mut ByName> {
        self.0.get_mut(&resource)
    }

    /// Puts an object in. Whether that says anything new.
    pub fn put(&mut self, resource: Resource, object: OriginObject) -> bool {
        let table = self.0.entry(resource).or_default();
        if table.get(&object.meta.name).is_some_and(|known| **known == object) {
            return false;
        }
        table.insert(object.meta.name.clone(), Arc::new(object));
        true
    }
}
