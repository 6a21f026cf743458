//! How often a failed attempt is followed by another, and how long that waits.
//!
//! Owns the policy of runs and of pools alike. The only module that names the `backoff` crate; what would replace it is named in `deny.toml`.
//! Which failures count is `run`'s affair.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;

/// Most attempts a policy may allow.
pub const ATTEMPTS_MAX: u32 = 16;

/// A run's retry policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Attempts in all that count, 1 to 16.
    pub max_attempts: u32,
    /// The longest one attempt may take.
    pub attempt_timeout: Option<Duration>,
    /// The longest wait before the second attempt.
    pub initial_backoff: Duration,
    /// The longest wait before any.
    pub max_backoff: Duration,
    /// What the longest wait is multiplied by each time, at least 1.
    pub multiplier: f64,
    /// Agent error types that are never retried.
    pub non_retryable_types: Vec<String>,
}

impl Policy {
    /// The defaults with so many attempts.
    #[must_use]
    pub fn attempts(max_attempts: u32) -> Self {
        Self {
            max_attempts,
            attempt_timeout: None,
            initial_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(30),
            multiplier: 2.0,
            non_retryable_types: Vec::new(),
        }
    }

    /// The wait before a retry, the first being number 1: anything from nothing to the longest
    /// (full jitter), by chance.
    #[must_use]
    pub fn wait(&self, retry: u32) -> Duration {
        // The crate spreads an interval evenly over 0 to 2 times itself when its factor is 1.
        let mut waits = ExponentialBackoff {
            current_interval: self.initial_backoff.min(self.max_backoff) / 2,
            initial_interval: self.initial_backoff.min(self.max_backoff) / 2,
            randomization_factor: 1.0,
            multiplier: self.multiplier.max(1.0),
            max_interval: self.max_backoff / 2,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        let mut wait = Duration::ZERO;
        for _ in 0..retry.clamp(1, ATTEMPTS_MAX) {
            wait = waits.next_backoff().unwrap_or(self.max_backoff);
        }
        wait.min(self.max_backoff)
    }
}

/// Where the waits before retries come from, so that rules can be tested without chance.
pub trait Waits: Send {
    /// The wait before a retry, the first being number 1.
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration;
}

/// Waits by chance, as a running harness has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByChance;

impl Waits for ByChance {
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration {
        policy.wait(retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread_from_nothing_to_a_longest_that_doubles_up_to_its_cap() {
        let policy = Policy {
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_millis(350),
            ..Policy::attempts(5)
        };
        for (retry, longest) in [(1, 100), (2, 200), (3, 350), (9, 350)] {
            let longest = Duration::from_millis(longest);
            let waits: Vec<Duration> = (0..500).map(|_| policy.wait(retry)).collect();
            assert!(
                waits
                    .iter()
                    .all(|wait| *wait <= longest + Duration::from_micros(1))
            );
            assert!(
                waits.iter().any(|wait| *wait < longest / 5),
                "retry {retry}"
            );
            assert!(
                waits.iter().any(|wait| *wait > longest * 4 / 5),
                "retry {retry}"
            );
        }
    }
    #[test]
    fn no_wait_is_likelier_than_another_however_long_it_may_be() {
        let minute = Duration::from_secs(60);
        for longest in [Duration::from_millis(100), minute, 60 * minute] {
            let policy = Policy {
                initial_backoff: longest,
                max_backoff: longest,
                ..Policy::attempts(5)
            };
            for retry in [1, 4] {
                let waits: Vec<Duration> = (0..500).map(|_| policy.wait(retry)).collect();
                let long = waits
                    .iter()
                    .filter(|wait| **wait > longest * 9 / 10)
                    .count();
                assert!((10..150).contains(&long), "{long} of 500 for {longest:?}");
            }
        }
    }

    #[test]
    fn a_multiplier_below_one_does_not_shorten_the_waits() {
        let policy = Policy {
            multiplier: 0.0,
            ..Policy::attempts(5)
        };
        let waits = (0..500).map(|_| policy.wait(9));
        assert!(waits.max() > Some(policy.initial_backoff / 2));
    }
}
