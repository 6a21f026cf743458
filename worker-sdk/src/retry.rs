//! How long to wait before trying again.
//!
//! Owns the jittered exponential back-off of this crate and is the only module that names the
//! `backoff` crate, which is unmaintained. Does not sleep and does not decide what is tried again.

use std::time::Duration;

use backoff::backoff::Backoff as _;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

/// Doubles from `initial` to `max`, each wait drawn from half to one and a half of that.
#[derive(Debug)]
pub(crate) struct Backoff {
    waits: ExponentialBackoff,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(initial: Duration, max: Duration) -> Self {
        Self::with_spread(initial, max, 0.5)
    }

    /// The same, with each wait drawn from nothing to twice of that: many that failed at once come
    /// back spread as widely as can be.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn full_jitter(initial: Duration, max: Duration) -> Self {
        Self::with_spread(initial, max, 1.0)
    }

    fn with_spread(initial: Duration, max: Duration, spread: f64) -> Self {
        let waits = ExponentialBackoffBuilder::new()
            .with_initial_interval(initial)
            .with_max_interval(max)
            .with_multiplier(2.0)
            .with_randomization_factor(spread)
            .with_max_elapsed_time(None)
            .build();
        Self { waits, max }
    }

    /// The next wait, at least `least`.
    pub(crate) fn next_wait(&mut self, least: Option<Duration>) -> Duration {
        // The crate says None only after a longest time, and there is none.
        let wait = self.waits.next_backoff().unwrap_or(self.max);
        // What a harness asks as the least still gets the jitter on top: workers that were all
        // told the same second must not come back in the same millisecond.
        least.map_or(wait, |least| least.saturating_add(wait))
    }

    /// Starts again at `initial`.
    pub(crate) fn reset(&mut self) {
        self.waits.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_with_jitter_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let waits: Vec<_> = (0..20).map(|_| backoff.next_wait(None)).collect();
        assert!(waits[0] >= Duration::from_millis(50) && waits[0] <= Duration::from_millis(150));
        assert!(
            waits[19] >= Duration::from_millis(500) && waits[19] <= Duration::from_millis(1500)
        );
        assert!(waits.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_least_wait_is_kept_and_a_reset_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        for _ in 0..8 {
            assert!(backoff.next_wait(Some(Duration::from_secs(3))) >= Duration::from_secs(3));
        }
        backoff.reset();
        assert!(backoff.next_wait(None) <= Duration::from_millis(150));
    }
}
