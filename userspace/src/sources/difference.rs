//! Where two readings of a file differ, by numbers of its routes' texts.

use crate::model::Places;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A text, by 128 bits that depend on two keys of this process.
pub(super) type Number = [u64; 2];

/// Where a file differs from the one before it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Positions of routes that are in both.
    pub(super) places: Places,
    /// Positions of earlier routes that are gone.
    pub(super) gone: Vec<usize>,
    /// Positions of new routes.
    pub(super) new: Vec<usize>,
}

impl Difference {
    pub(super) fn of(before: &[Number], now: &[Number]) -> Self {
        let first = before.iter().zip(now).take_while(|(a, b)| a == b).count();
        let rest = before[first..].iter().rev().zip(now[first..].iter().rev());
        let last = rest.take_while(|(a, b)| a == b).count();
        let old = first..before.len() - last;
        let mut left: HashMap<Number, usize> = old.clone().map(|place| (before[place], place)).collect();
        let (mut same, mut new) = (HashMap::new(), Vec::new());
        for (place, number) in now.iter().enumerate().take(now.len() - last).skip(first) {
            match left.remove(number) {
                Some(old) => drop(same.insert(old, place)),
                None => new.push(place),
            }
        }
        let gone = old.filter(|place| !same.contains_key(place)).collect();
        let places = Places { before: before.len(), now: now.len(), first, last, same };
        Self { places, gone, new }
    }

    /// Moves names to their new positions; `new` are those of new routes, `same` as in [`Places`].
    pub(super) fn rename(places: &Places, names: &mut Vec<Arc<str>>, new: Vec<(usize, Arc<str>)>) {
        let mut between: BTreeMap<usize, Arc<str>> = new.into_iter().collect();
        between.extend(places.same.iter().map(|(old, now)| (*now, Arc::clone(&names[*old]))));
        names.splice(places.first..names.len() - places.last, between.into_values());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_around_what_moved() {
        let numbers = |list: &[u64]| list.iter().map(|n| [*n, 0]).collect::<Vec<_>>();
        let of = |before: &[u64], now: &[u64]| Difference::of(&numbers(before), &numbers(now));
        assert_eq!(of(&[], &[]), Difference::default());
        let places = |before, now, first, last| Places { before, now, first, last, ..Places::default() };
        let none = of(&[1, 2, 3], &[1, 2, 3]);
        assert_eq!(none, Difference { places: places(3, 3, 3, 0), ..Difference::default() });
        let one = of(&[1, 2, 3], &[1, 9, 3]);
        assert_eq!(one, Difference { places: places(3, 3, 1, 1), gone: vec![1], new: vec![1] });
        let swapped = of(&[1, 2, 3, 4], &[1, 3, 2, 4]);
        assert_eq!((swapped.gone.len(), swapped.new.len(), swapped.places.same.len()), (0, 0, 2));
        assert_eq!((0..4).map(|old| swapped.places.to(old)).collect::<Vec<_>>(), [0, 2, 1, 3].map(Some));
        let twice = of(&[7, 1], &[7, 7, 1]);
        assert_eq!((twice.gone.len(), twice.new), (0, vec![1]));
        assert_eq!((twice.places.to(0), twice.places.to(1)), (Some(0), Some(2)));
    }
}
