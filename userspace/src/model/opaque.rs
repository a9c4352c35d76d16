//! Values whose type their origin alone knows: the rest of the program keeps, compares and hands them back.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What every such value can do.
trait Value: Any + fmt::Debug + Send + Sync {
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + fmt::Debug + Eq + Send + Sync> Value for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// A value of any type.
#[derive(Clone)]
pub struct Opaque(Arc<dyn Value>);

impl Opaque {
    /// Hides the type of a value.
    pub fn new(value: impl Any + fmt::Debug + Eq + Send + Sync) -> Self {
        Self(Arc::new(value))
    }

    /// Returns the value if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.any().downcast_ref()
    }

    fn any(&self) -> &dyn Any {
        &*self.0
    }
}

impl PartialEq for Opaque {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.as_ref().equals(other.any())
    }
}

impl Eq for Opaque {}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().fmt(f)
    }
}

/// At most one value of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opaques(BTreeMap<TypeId, Opaque>);

impl Opaques {
    /// Returns the value of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.get()
    }

    /// Puts a value in, instead of the one of its type.
    pub fn set<T: Any + fmt::Debug + Eq + Send + Sync>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Opaque::new(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_equal_if_their_types_and_contents_are() {
        assert_eq!(Opaque::new(7_u8), Opaque::new(7_u8));
        assert_ne!(Opaque::new(7_u8), Opaque::new(8_u8));
        assert_ne!(Opaque::new(7_u8), Opaque::new(7_u16));
        assert_eq!((Opaque::new(7_u8).get(), Opaque::new(7_u8).get::<u16>()), (Some(&7_u8), None));
        let mut all = Opaques::default();
        all.set(7_u8);
        all.set("x");
        all.set(8_u8);
        assert_eq!((all.get(), all.get(), all.get::<u16>()), (Some(&8_u8), Some(&"x"), None));
        assert_eq!(format!("{:?}", Opaque::new("x")), "\"x\"");
    }
}
