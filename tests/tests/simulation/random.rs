//! Chance from a seed: splitmix64, the same on every machine.

use std::time::Duration;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5bf0_3635_dcd2_91c1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Anything from 0 to `n` - 1.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    pub(crate) fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// So often in a hundred the usual, else one of the others.
    pub(crate) fn mostly<T: Copy>(&mut self, percent: u64, usual: T, others: &[T]) -> T {
        if self.percent(percent) {
            usual
        } else {
            self.pick(others)
        }
    }

    /// A time in microseconds; short ones as likely as long ones.
    pub(crate) fn micros(&mut self, least: u64, most: u64) -> u64 {
        let octaves = 64 - (most / least.max(1)).leading_zeros();
        let top = least << self.below(u64::from(octaves) + 1);
        (least + self.below(top.saturating_sub(least) + 1)).min(most)
    }

    pub(crate) fn time(&mut self, least: Duration, most: Duration) -> Duration {
        Duration::from_micros(self.micros(least.as_micros() as u64, most.as_micros() as u64))
    }
}

/// A number that looks like chance and depends only on the one given.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
