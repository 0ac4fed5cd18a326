//! How many requests one subscription may have under way, so that others always go on.

/// One subscription has at most this part of the places that are free to it; and this part of all places is only for those who have
/// none.
const PART: usize = 4;

/// How many requests a subscription that has `own` under way may begin beside them, where `free` of `all` places are free. One that
/// has none may always begin one, as soon as a place is free: so those whose receivers never answer keep nobody from anything.
pub(super) fn more(own: usize, free: usize, all: usize) -> usize {
    let share = (own + free) / PART;
    let spare = free.saturating_sub(all / PART);
    let more = share.saturating_sub(own).min(spare);
    if own == 0 { more.max(1) } else { more }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_subscription_has_a_quarter_and_each_further_one_a_quarter_of_what_is_left() {
        assert_eq!(more(0, 1_024, 1_024), 256);
        assert_eq!(more(0, 768, 1_024), 192);
        assert_eq!((more(100, 924, 1_024), more(256, 768, 1_024)), (156, 0));
    }

    #[test]
    fn whoever_wants_many_leaves_places_for_those_who_have_none() {
        for all in 1..200 {
            let mut free = all;
            for _ in 0..100 {
                let taken = more(0, free, all);
                if taken > 1 {
                    assert!(free - taken >= all / PART, "{all}");
                }
                free = free.saturating_sub(taken);
            }
        }
    }

    #[test]
    fn with_a_single_place_one_goes_after_the_other() {
        assert_eq!((more(0, 1, 1), more(1, 0, 1), more(0, 0, 1)), (1, 0, 1));
    }
}
