//! Which routes have metrics of their own, and the sum of the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use common::maps::event::RouteCounters;
use common::maps::route::LABEL_ROUTE;

use crate::dataplane::maps::Maps;
use crate::dataplane::read;
use crate::dataplane::table::TableError;

/// The most routes that have metrics of their own. The others are summed up as [`OTHERS`].
const ROUTES_MAX: usize = 10_000;

/// The most routes of a node that have metrics of their own without being asked for: on 500 nodes, each is 1,500 series.
const FEW_ROUTES: usize = 200;

/// The same where there were more, so that one route more or less does not replace all series.
const FEW_AGAIN: usize = 180;

/// The label of routes beyond [`ROUTES_MAX`], and of all routes if they have no metrics of their own.
const OTHERS: &str = "(others)";

/// Whether each route has metrics of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerRoute {
    /// If there are few.
    #[default]
    Auto,
    /// Yes.
    Always,
    /// No.
    Never,
}

/// The decision whether each route has metrics of its own: one for all metrics, which share it.
#[derive(Clone, Debug, Default)]
pub struct OwnSeries {
    per_route: PerRoute,
    /// Whether the node has many routes; `None`: not known yet.
    are_many: Arc<Mutex<Option<bool>>>,
}

impl OwnSeries {
    /// Decides like this.
    pub fn new(per_route: PerRoute) -> Self {
        Self { per_route, are_many: Arc::default() }
    }

    /// Notes the number of the node's routes.
    pub fn note(&self, routes: usize) {
        let mut are_many = self.are_many.lock().unwrap_or_else(PoisonError::into_inner);
        *are_many = Some(routes > if *are_many == Some(true) { FEW_AGAIN } else { FEW_ROUTES });
    }

    /// Returns how many routes have metrics of their own. Before the number of routes is known, `counted` is taken for it.
    fn most(&self, counted: usize) -> usize {
        let are_many = *self.are_many.lock().unwrap_or_else(PoisonError::into_inner);
        match self.per_route {
            PerRoute::Auto if are_many.unwrap_or(counted > FEW_ROUTES) => 0,
            PerRoute::Auto | PerRoute::Always => ROUTES_MAX,
            PerRoute::Never => 0,
        }
    }

    /// Returns numbers by route, with the sum of those that have no metrics of their own.
    pub fn some(&self, mut by_route: BTreeMap<String, i64>) -> BTreeMap<String, i64> {
        let most = self.most(by_route.len());
        if by_route.len() > most {
            let own = by_route.iter().nth(most).map(|(route, _)| route.clone()).unwrap_or_default();
            let others = by_route.split_off(&own);
            by_route.insert(OTHERS.to_owned(), others.into_values().sum());
        }
        by_route
    }
}

/// The counters of routes without metrics of their own, summed up over time from the first time that they are read: those of a route that is
/// gone stay in the sum. A counter that goes down is taken for one that began at 0, as this one does with each agent: what the one before
/// counted is not new.
#[derive(Debug)]
pub(super) struct Others {
    /// The counters of every route when they were read last, in the order of ids; `None`: they never were.
    before: Option<Box<[(u32, RouteCounters)]>>,
    sum: RouteCounters,
}

impl Default for Others {
    fn default() -> Self {
        Self { before: None, sum: RouteCounters::zeroed() }
    }
}

impl Others {
    /// Sums counters by route name. In the order of ids, so that the same routes always have their own metrics.
    pub(super) fn counted(
        &mut self,
        maps: &Maps,
        own: &OwnSeries,
    ) -> Result<BTreeMap<String, RouteCounters>, TableError> {
        let mut counters = read::route_counters(maps)?;
        counters.sort_by_key(|(id, _)| *id);
        let most = own.most(counters.len());
        let mut names: HashMap<u32, String> = HashMap::new();
        if most > 0 {
            maps.labels.walk(|key, label| {
                if key.kind == LABEL_ROUTE {
                    let text = label.text.get(..usize::from(label.length)).unwrap_or(&label.text);
                    names.insert(key.id, String::from_utf8_lossy(text).into_owned());
                }
            })?;
        }
        Ok(self.by_name(&counters, &names, most))
    }

    /// The same of counters in the order of ids.
    fn by_name(
        &mut self,
        counters: &[(u32, RouteCounters)],
        names: &HashMap<u32, String>,
        most: usize,
    ) -> BTreeMap<String, RouteCounters> {
        let mut sums: BTreeMap<String, RouteCounters> = BTreeMap::new();
        let mut are_all_own = true;
        for (id, now) in counters {
            if let Some(name) = names.get(id).filter(|_| sums.len() < most) {
                add(sums.entry(name.clone()).or_insert_with(RouteCounters::zeroed), now);
            } else {
                if let Some(before) = &self.before {
                    let before = before.binary_search_by_key(id, |(id, _)| *id).ok().map(|at| &before[at].1);
                    add(&mut self.sum, &since(before, now));
                }
                are_all_own = false;
            }
        }
        if !are_all_own {
            sums.insert(OTHERS.to_owned(), self.sum);
        }
        self.before = Some(counters.into());
        sums
    }
}

fn add(sum: &mut RouteCounters, more: &RouteCounters) {
    sum.connected += more.connected;
    sum.refused += more.refused;
    sum.retried += more.retried;
}

/// Returns what was counted since. Counters that went down are those of another route, which has the id now.
fn since(before: Option<&RouteCounters>, now: &RouteCounters) -> RouteCounters {
    let less = |before: &RouteCounters| {
        Some(RouteCounters {
            connected: now.connected.checked_sub(before.connected)?,
            refused: now.refused.checked_sub(before.refused)?,
            retried: now.retried.checked_sub(before.retried)?,
            ..*now
        })
    };
    before.and_then(less).unwrap_or(*now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_metrics_of_their_own_where_they_are_few_or_that_is_asked_for() {
        let numbers = |routes: i64| (0..routes).map(|at| (format!("r{at:05}"), at)).collect();
        for (per_route, routes, own) in [
            (PerRoute::Auto, 200, 200),
            (PerRoute::Auto, 201, 0),
            (PerRoute::Always, 201, 201),
            (PerRoute::Always, 10_001, 10_000),
            (PerRoute::Never, 1, 0),
        ] {
            for is_noted in [false, true] {
                let series = OwnSeries::new(per_route);
                if is_noted {
                    series.note(routes as usize);
                }
                let some = series.some(numbers(routes));
                let others = some.len() - own;
                assert_eq!(others, usize::from(own < routes as usize), "{per_route:?} {routes}");
                assert_eq!(some.values().sum::<i64>(), (0..routes).sum::<i64>(), "{per_route:?} {routes}");
                assert_eq!(some.contains_key(OTHERS), own < routes as usize);
            }
        }
        assert_eq!(OwnSeries::new(PerRoute::Never).some(BTreeMap::new()), BTreeMap::new(), "none fails");
        let series = OwnSeries::default();
        series.note(201);
        assert_eq!(series.some([("a".to_owned(), 2)].into()), [(OTHERS.to_owned(), 2)].into());
    }

    /// Each change ends all series of a metric, and begins others.
    #[test]
    fn routes_that_were_many_have_metrics_of_their_own_again_at_fewer() {
        let series = OwnSeries::default();
        let shared = series.clone();
        for (routes, most) in
            [(200, ROUTES_MAX), (201, 0), (200, 0), (181, 0), (180, ROUTES_MAX), (200, ROUTES_MAX), (201, 0)]
        {
            series.note(routes);
            // However many of them have counters.
            for counted in [0, 500] {
                assert_eq!((shared.most(counted), series.most(counted)), (most, most), "{routes}");
            }
        }
    }

    fn counted(connected: u64) -> RouteCounters {
        RouteCounters { connected, refused: connected / 2, ..RouteCounters::zeroed() }
    }

    fn names(ids: impl IntoIterator<Item = u32>) -> HashMap<u32, String> {
        ids.into_iter().map(|id| (id, format!("r{id}"))).collect()
    }

    #[test]
    fn routes_beyond_the_bound_are_summed_up() {
        let counters: Vec<_> = (1..=4).map(|id| (id, counted(u64::from(id)))).collect();
        let others = || Others { before: Some(Box::default()), ..Others::default() };
        let sums = others().by_name(&counters, &names(1..=4), 2);
        let told: Vec<_> = sums.iter().map(|(name, sum)| (name.as_str(), sum.connected)).collect();
        assert_eq!(told, [(OTHERS, 7), ("r1", 1), ("r2", 2)]);
        assert_eq!(others().by_name(&counters, &names(1..=4), 0)[OTHERS].connected, 10);
        assert_eq!(others().by_name(&counters, &HashMap::new(), 9)[OTHERS].connected, 10);
        assert_eq!(others().by_name(&counters, &names(1..=4), 9).get(OTHERS), None);
    }

    /// `rate` takes a counter that goes down for one that began at 0, and all of it for new.
    #[test]
    fn the_sum_of_the_others_never_goes_down_and_counts_each_connection_once() {
        let mut others = Others::default();
        for (counters, sum) in [
            (&[(1, 100), (2, 10)][..], 0),
            (&[(1, 100), (2, 15)], 5),
            // One is removed, and another comes. The next agent begins with less, and at 0.
            (&[(2, 15), (3, 4)], 9),
            // Its id has another route now, of which less was counted.
            (&[(2, 2), (3, 6)], 13),
            (&[], 13),
            (&[(9, 1)], 14),
        ] {
            let counters: Vec<_> =
                counters.iter().map(|(id, connected)| (*id, counted(*connected))).collect();
            let sums = others.by_name(&counters, &HashMap::new(), 0);
            assert_eq!(sums.get(OTHERS).map(|sum| sum.connected), (!counters.is_empty()).then_some(sum));
        }
        // What was counted while a route had metrics of its own is not new when it has them no more.
        let mut others = Others::default();
        let at = |connected| [(1, counted(connected)), (2, counted(20))];
        assert_eq!(others.by_name(&at(10), &names(1..=2), 1)[OTHERS].connected, 0);
        assert_eq!(others.by_name(&at(50), &names(1..=2), 1)[OTHERS].connected, 0);
        assert_eq!(others.by_name(&at(57), &names(1..=2), 0)[OTHERS].connected, 7);
        let sums = others.by_name(&at(60), &names(1..=2), 9);
        assert_eq!((sums.get(OTHERS), sums["r1"].connected), (None, 60));
        assert_eq!(others.by_name(&at(61), &names(1..=2), 0)[OTHERS].connected, 8);
    }
}
