//! Medians and their intervals.

/// A median with its 95 % confidence interval: the true median is in it with at least this certainty. It is
/// computed by order statistics, without assumptions about the distribution of the figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Of how many figures it is; 0: not known.
    pub(crate) figures: usize,
}

impl Median {
    /// A single figure.
    pub(crate) const fn one(value: f64) -> Self {
        Self { value, low: value, high: value, figures: 1 }
    }

    /// Computes the median of at least one figure. For fewer than six figures no such interval is known: it
    /// then spans all of them.
    pub(crate) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let middle = count / 2;
        let value = match count {
            0 => f64::NAN,
            _ if count.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        let left_out = left_out(count);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        Self { value, low: at(left_out), high: at(count.wrapping_sub(1 + left_out)), figures: count }
    }
}

/// Returns how many of the smallest, and of the greatest, figures are outside the interval. The true median
/// is below the figure of rank `r` if fewer than `r` figures are below the median. How many are below it
/// follows the binomial distribution with probability one half. The interval starts at the greatest `r` for
/// which this, on both sides together, has a probability of at most 5 %.
fn left_out(count: usize) -> usize {
    let mut exactly = 0.5_f64.powi(count as i32);
    let mut fewer = 0.0;
    let mut rank = 0;
    while rank < count / 2 && 2.0 * (fewer + exactly) <= 0.05 {
        fewer += exactly;
        exactly *= (count - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    rank.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(Median::of(&[3.0, 1.0, 2.0]).value, 2.0);
        assert_eq!(Median::of(&[4.0, 1.0, 2.0, 3.0]).value, 2.5);
        assert!(Median::of(&[]).value.is_nan());
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Conover, Practical Nonparametric Statistics, sign test: ranks of the 95 % interval of a median.
        for (count, low, high) in
            [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (12, 3, 10), (15, 4, 12), (20, 6, 15), (40, 14, 27)]
        {
            let figures: Vec<f64> = (1..=count).map(f64::from).collect();
            let median = Median::of(&figures);
            assert_eq!((median.low, median.high), (f64::from(low), f64::from(high)), "of {count}");
        }
        let few = Median::of(&[5.0, 7.0]);
        assert_eq!((few.low, few.high), (5.0, 7.0));
    }
}
