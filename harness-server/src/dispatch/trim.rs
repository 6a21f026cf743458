//! Maps that give back the memory of a crowd that has left.
//!
//! Owns when a map is cut. The maps themselves are their owners'.

use std::hash::Hash;

use ahash::AHashMap;

/// A map with fewer entries is left as it is.
const SMALL: usize = 128;

/// A map has room for so many times its entries before it is cut, so that one that fills again is
/// not made anew each time.
const ROOM: usize = 8;

/// Cuts a map that is nearly empty for what it was. To be called after each removal: it looks at
/// the map each time half of what was there has gone.
pub(crate) fn trim<K: Eq + Hash, V>(map: &mut AHashMap<K, V>) {
    let len = map.len();
    if len >= SMALL && len.is_power_of_two() {
        map.shrink_to(len * ROOM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_as_large_as_what_it_holds_demands() {
        let mut map: AHashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        assert!(map.capacity() >= 100_000);
        for n in 10..100_000 {
            map.remove(&n);
            trim(&mut map);
        }
        let capacity = map.capacity();
        assert!((SMALL..SMALL * ROOM * 2).contains(&capacity), "{capacity}");
        assert!((0..10).all(|n| map.get(&n) == Some(&n)));
    }
}
