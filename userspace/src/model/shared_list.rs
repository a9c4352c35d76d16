//! A long list in the order of names whose copies share what did not change: a change costs what it changes, and two
//! states are compared where they differ.

use std::cmp::Ordering;
use std::fmt;
use std::iter::FlatMap;
use std::ops::Index;
use std::slice;
use std::sync::Arc;

/// Items of one piece; a piece that grew to twice as many is cut.
const PIECE: usize = 128;

/// What a list is ordered by.
pub trait Named {
    /// Unique in a list.
    fn name(&self) -> &str;
}

impl<T: Named> Named for Arc<T> {
    fn name(&self) -> &str {
        T::name(self)
    }
}

/// Items in the order of their names, each name once.
#[derive(Clone)]
pub struct SharedList<T> {
    /// None is empty.
    pieces: Vec<Arc<Vec<T>>>,
    /// The position in the list of each piece's first item.
    starts: Vec<usize>,
    len: usize,
}

/// The items of a list.
pub type Iter<'a, T> =
    FlatMap<slice::Iter<'a, Arc<Vec<T>>>, slice::Iter<'a, T>, fn(&'a Arc<Vec<T>>) -> slice::Iter<'a, T>>;

/// Where two lists differ: what the older one has of a name, and the newer one.
pub type Difference<'a, T> = (Option<&'a T>, Option<&'a T>);

impl<T> SharedList<T> {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All items in order.
    pub fn iter(&self) -> Iter<'_, T> {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }

    /// The item at a position.
    pub fn get(&self, place: usize) -> Option<&T> {
        let piece = self.starts.partition_point(|start| *start <= place).checked_sub(1)?;
        self.pieces.get(piece)?.get(place - self.starts.get(piece)?)
    }

    /// Of items in order.
    fn of(pieces: Vec<Arc<Vec<T>>>) -> Self {
        let mut len = 0;
        let starts = pieces.iter().map(|piece| {
            let start = len;
            len += piece.len();
            start
        });
        let starts = starts.collect();
        Self { pieces, starts, len }
    }
}

impl<T: Named> SharedList<T> {
    /// The position of a name; `Err`: the position where it would be inserted.
    pub fn place(&self, name: &str) -> Result<usize, usize> {
        let piece = self.pieces.partition_point(|piece| piece.last().is_some_and(|last| last.name() < name));
        let (Some(items), Some(start)) = (self.pieces.get(piece), self.starts.get(piece)) else {
            return Err(self.len);
        };
        match items.binary_search_by(|item| item.name().cmp(name)) {
            Ok(place) => Ok(start + place),
            Err(place) => Err(start + place),
        }
    }

    /// The item of a name.
    pub fn find(&self, name: &str) -> Option<&T> {
        self.place(name).ok().and_then(|place| self.get(place))
    }
}

impl<T: Named + Clone> SharedList<T> {
    /// The list with other items: of each name, what it is to have now. The names are in order.
    #[must_use]
    pub fn edited(&self, edits: impl IntoIterator<Item = (Arc<str>, Option<T>)>) -> Self {
        let mut edits = edits.into_iter().peekable();
        let mut pieces = Vec::with_capacity(self.pieces.len() + 1);
        let mut left = self.pieces.len();
        for piece in &self.pieces {
            left -= 1;
            let last = piece.last().map_or("", Named::name);
            let belongs = |(name, _): &(Arc<str>, Option<T>)| left == 0 || **name <= *last;
            if !edits.peek().is_some_and(belongs) {
                pieces.push(Arc::clone(piece));
                continue;
            }
            let mut items = Vec::with_capacity(piece.len() + 1);
            for old in piece.iter() {
                while let Some((_, new)) = edits.next_if(|(name, _)| **name < *old.name()) {
                    items.extend(new);
                }
                match edits.next_if(|(name, _)| **name == *old.name()) {
                    Some((_, new)) => items.extend(new),
                    None => items.push(old.clone()),
                }
            }
            while let Some((_, new)) = edits.next_if(belongs) {
                items.extend(new);
            }
            cut(items, &mut pieces);
        }
        cut(edits.filter_map(|(_, new)| new).collect(), &mut pieces);
        Self::of(pieces)
    }
}

impl<T: Named + PartialEq> SharedList<T> {
    /// What `newer` has of each name that it does not have like this one, in the order of names.
    pub fn differences<'a>(&'a self, newer: &'a Self) -> Vec<Difference<'a, T>> {
        let mut found = Vec::new();
        let (mut old, mut new) = (Cursor::new(self), Cursor::new(newer));
        loop {
            if old.skips_with(&mut new) {
                continue;
            }
            match (old.item(), new.item()) {
                (None, None) => return found,
                (Some(before), Some(now)) if before == now => {
                    old.next();
                    new.next();
                }
                (before, now) => {
                    let order = match (before, now) {
                        (Some(before), Some(now)) => before.name().cmp(now.name()),
                        (Some(_), None) => Ordering::Less,
                        _ => Ordering::Greater,
                    };
                    found.push((before.filter(|_| order.is_le()), now.filter(|_| order.is_ge())));
                    if order.is_le() {
                        old.next();
                    }
                    if order.is_ge() {
                        new.next();
                    }
                }
            }
        }
    }
}

impl<T: Named + PartialEq + Clone> SharedList<T> {
    /// The same list, with what an older one has alike taken from that: nothing is kept twice while both are there, and comparing them
    /// costs what differs.
    #[must_use]
    pub fn sharing(&self, older: &Self) -> Self {
        let edit = |(before, now): Difference<'_, T>| {
            let name = before.or(now).map_or("", Named::name);
            (Arc::from(name), now.cloned())
        };
        older.edited(older.differences(self).into_iter().map(edit))
    }
}

/// A position in a list.
struct Cursor<'a, T> {
    pieces: &'a [Arc<Vec<T>>],
    place: usize,
}

impl<'a, T> Cursor<'a, T> {
    fn new(list: &'a SharedList<T>) -> Self {
        Self { pieces: &list.pieces, place: 0 }
    }

    fn item(&self) -> Option<&'a T> {
        self.pieces.first()?.get(self.place)
    }

    fn next(&mut self) {
        self.place += 1;
        if self.pieces.first().is_some_and(|piece| self.place >= piece.len()) {
            self.skip();
        }
    }

    fn skip(&mut self) {
        self.pieces = self.pieces.get(1..).unwrap_or_default();
        self.place = 0;
    }

    /// Goes past a piece that both have.
    fn skips_with(&mut self, other: &mut Self) -> bool {
        let both = self.pieces.first().zip(other.pieces.first());
        let same = self.place == 0 && other.place == 0 && both.is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        if same {
            self.skip();
            other.skip();
        }
        same
    }
}

/// Adds items as pieces.
fn cut<T>(items: Vec<T>, pieces: &mut Vec<Arc<Vec<T>>>) {
    if items.len() < 2 * PIECE {
        if !items.is_empty() {
            pieces.push(Arc::new(items));
        }
        return;
    }
    let mut items = items.into_iter();
    while items.len() > 0 {
        pieces.push(Arc::new(items.by_ref().take(PIECE).collect()));
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

/// Of items in the order of their names.
impl<T: Named> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        let mut pieces = Vec::new();
        loop {
            let piece: Vec<T> = items.by_ref().take(PIECE).collect();
            if piece.is_empty() {
                break;
            }
            pieces.push(Arc::new(piece));
        }
        let list = Self::of(pieces);
        debug_assert!(list.iter().is_sorted_by(|a, b| a.name() < b.name()), "in order, each name once");
        list
    }
}

impl<'a, T> IntoIterator for &'a SharedList<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> Index<usize> for SharedList<T> {
    type Output = T;

    fn index(&self, place: usize) -> &T {
        self.get(place).expect("within the list")
    }
}

impl<T: PartialEq> PartialEq for SharedList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for SharedList<T> {}

impl<T: fmt::Debug> fmt::Debug for SharedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Item(Arc<str>, u8);

    impl Named for Item {
        fn name(&self) -> &str {
            &self.0
        }
    }

    type Edits = BTreeMap<u16, Option<u8>>;

    fn text(name: u16) -> Arc<str> {
        format!("{name:04}").into()
    }

    fn edits() -> impl Strategy<Value = Edits> {
        let few = prop::collection::btree_map(0..600u16, any::<Option<u8>>(), 0..5);
        let many = prop::collection::btree_map(0..600u16, any::<Option<u8>>(), 0..600);
        prop_oneof![few, many]
    }

    proptest! {
        #[test]
        fn a_list_is_edited_and_compared_like_a_map(steps in prop::collection::vec(edits(), 1..8)) {
            let mut list = SharedList::default();
            let mut map: BTreeMap<Arc<str>, u8> = BTreeMap::new();
            for edits in steps {
                let before = map.clone();
                for (name, value) in &edits {
                    match value {
                        Some(value) => drop(map.insert(text(*name), *value)),
                        None => drop(map.remove(&text(*name))),
                    }
                }
                let named = |(name, value): (&u16, &Option<u8>)| {
                    (text(*name), value.map(|value| Item(text(*name), value)))
                };
                let edited = list.edited(edits.iter().map(named));
                let whole: SharedList<Item> =
                    map.iter().map(|(name, value)| Item(Arc::clone(name), *value)).collect();
                prop_assert_eq!(&edited, &whole);
                for (place, item) in whole.iter().enumerate() {
                    prop_assert_eq!(&edited[place], item);
                    prop_assert_eq!(edited.place(item.name()), Ok(place));
                }
                prop_assert_eq!(edited.get(whole.len()), None);
                for newer in [&edited, &whole] {
                    let mut named = BTreeMap::new();
                    for (old, new) in list.differences(newer) {
                        let name = Arc::clone(&old.or(new).unwrap().0);
                        prop_assert!(old.is_none() || new.is_none() || old.unwrap().0 == new.unwrap().0);
                        named.insert(name, (old.map(|item| item.1), new.map(|item| item.1)));
                    }
                    let names = before.keys().chain(map.keys());
                    let wanted = names
                        .map(|name| (Arc::clone(name), (before.get(name).copied(), map.get(name).copied())))
                        .filter(|(_, (old, new))| old != new);
                    prop_assert_eq!(named, wanted.collect::<BTreeMap<_, _>>());
                }
                prop_assert_eq!(&whole.sharing(&list), &whole);
                list = edited;
            }
        }
    }

    #[test]
    fn a_changed_item_leaves_the_other_pieces_shared() {
        let list: SharedList<Item> = (0..1000).map(|n| Item(text(n), 0)).collect();
        let edited = list.edited([(text(500), Some(Item(text(500), 1)))]);
        let shared = list.pieces.iter().zip(&edited.pieces).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(shared, list.pieces.len() - 1);
        let whole: SharedList<Item> = edited.iter().cloned().collect();
        let again = whole.sharing(&list);
        let shared = list.pieces.iter().zip(&again.pieces).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!((again, shared), (edited, list.pieces.len() - 1));
    }
}
