//! One copy of each text that many objects contain: namespaces, names of Services, kinds, ports, zones.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

type Set<T> = HashSet<T, foldhash::fast::RandomState>;

/// Texts in use; shared by all watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interner(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    texts: Set<Arc<str>>,
    lists: Set<Arc<[Arc<str>]>>,
    /// How many there may be before those that nobody uses any more are dropped.
    limit: usize,
}

/// So few that looking for unused ones is not worth the time.
const FEW: usize = 4096;

impl Interner {
    /// The one copy of a text.
    pub(crate) fn of(&self, text: &str) -> Arc<str> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.texts.get(text) {
            return Arc::clone(known);
        }
        known.make_room();
        let text: Arc<str> = text.into();
        known.texts.insert(Arc::clone(&text));
        text
    }

    /// The one copy of a text that may not be there.
    pub(crate) fn of_option(&self, text: Option<String>) -> Option<Arc<str>> {
        text.map(|text| self.of(&text))
    }

    /// The one copy of a list of texts.
    pub(crate) fn list<'a>(&self, texts: impl Iterator<Item = &'a str>) -> Arc<[Arc<str>]> {
        let texts: Vec<Arc<str>> = texts.map(|text| self.of(text)).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.lists.get(&*texts) {
            return Arc::clone(known);
        }
        known.make_room();
        let list: Arc<[Arc<str>]> = texts.into();
        known.lists.insert(Arc::clone(&list));
        list
    }
}

impl Known {
    /// Drops what nobody uses, when so much has come that it may be worth it.
    fn make_room(&mut self) {
        if self.texts.len() + self.lists.len() < self.limit.max(FEW) {
            return;
        }
        self.lists.retain(|list| Arc::strong_count(list) > 1);
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.limit = 2 * (self.texts.len() + self.lists.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_there_once_and_goes_with_its_last_user() {
        let interner = Interner::default();
        let kept = interner.of("kept");
        assert!(Arc::ptr_eq(&kept, &interner.of("kept")));
        let list = interner.list(["a", "b"].into_iter());
        assert!(Arc::ptr_eq(&list, &interner.list(["a", "b"].into_iter())));
        for n in 0..3 * FEW {
            interner.of(&n.to_string());
        }
        let known = interner.0.lock().unwrap();
        assert!(known.texts.len() <= FEW, "{} texts", known.texts.len());
        assert!(known.texts.contains("kept") && known.texts.contains("a"));
    }
}
