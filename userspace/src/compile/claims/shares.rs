//! Weights of backends that give each backend reference its share, however many endpoints its Service has.

/// Shares are rounded if the common multiple of the endpoint counts is larger than this.
const MULTIPLE_MAX: u64 = 1 << 24;

/// A backend reference: its weight, and the number of endpoints that share it. Neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) weight: u32,
    pub(super) endpoints: u32,
}

/// Returns the weight of each endpoint of each group. Weights are small whole numbers where these can express
/// the shares, because tables grow with the ratio of weights. Their sum over groups is at most 65,535, so an
/// endpoint in several groups can have the sum of its weights.
pub(super) fn of(groups: &[Group]) -> Vec<u16> {
    let multiple = groups.iter().try_fold(1_u64, |multiple, group| {
        let count = u64::from(group.endpoints);
        Some(multiple / gcd(multiple, count) * count).filter(|multiple| *multiple <= MULTIPLE_MAX)
    });
    let multiple = multiple.unwrap_or(MULTIPLE_MAX);
    let each = |group: &Group| (u64::from(group.weight) * multiple / u64::from(group.endpoints)).max(1);
    let shares: Vec<u64> = groups.iter().map(each).collect();
    let divisor = shares.iter().copied().fold(0, gcd).max(1);
    let largest = shares.iter().copied().max().unwrap_or(1) / divisor;
    let most = u64::from(u16::MAX) / (groups.len() as u64).max(1);
    let fitted = |share: &u64| {
        let share = share / divisor;
        let share = if largest > most { (share * most + largest / 2) / largest } else { share };
        u16::try_from(share.max(1)).unwrap_or(u16::MAX)
    };
    shares.iter().map(fitted).collect()
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(groups: &[(u32, u32)]) -> Vec<u16> {
        let groups: Vec<Group> = groups
            .iter()
            .map(|(weight, endpoints)| Group { weight: *weight, endpoints: *endpoints })
            .collect();
        of(&groups)
    }

    #[test]
    fn whole_shares_are_exact_and_small() {
        assert_eq!(shares(&[(1, 3)]), [1]);
        assert_eq!(shares(&[(1_000_000, 255)]), [1]);
        assert_eq!(shares(&[(70, 1), (30, 1)]), [7, 3]);
        assert_eq!(shares(&[(1, 1), (1, 3)]), [3, 1]);
        assert_eq!(shares(&[(70, 7), (30, 9)]), [3, 1]);
        assert_eq!(shares(&[(1, 2), (1, 3), (2, 5)]), [15, 10, 12]);
        assert!(shares(&[]).is_empty());
    }

    #[test]
    fn extreme_weights_keep_their_ratio_as_far_as_16_bits_go() {
        assert_eq!(shares(&[(1_000_000, 1), (1, 1)]), [32_767, 1]);
        for groups in [
            &[(1_000_000, 255), (999_999, 254), (3, 253), (77, 251)][..],
            &[(5, 241), (7, 239), (11, 233), (13, 229), (17, 227), (19, 223)],
        ] {
            let found = shares(groups);
            let largest = groups.iter().map(|(w, n)| f64::from(*w) / f64::from(*n)).fold(0.0, f64::max);
            let most = f64::from(found.iter().copied().max().unwrap());
            for ((weight, count), share) in groups.iter().zip(&found) {
                let wanted = f64::from(*weight) / f64::from(*count) / largest * most;
                let off = (f64::from(*share) - wanted).abs();
                assert!(off <= 1.0_f64.max(wanted * 0.01), "{groups:?}: {found:?}");
            }
            assert!(found.iter().map(|share| u32::from(*share)).sum::<u32>() <= 65_535);
        }
    }
}
