//! How often a principal may hang up: a token bucket, in place of a transport limit that would end
//! the innocent calls of the same connection.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The hang-ups of one principal.
#[derive(Debug)]
pub(super) struct HangUps {
    per_second: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl HangUps {
    pub(super) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        Self {
            per_second: f64::from(per_second.max(1)),
            burst: f64::from(burst.max(1)),
            bucket: Mutex::new(Bucket {
                tokens: f64::from(burst.max(1)),
                at: now,
            }),
        }
    }

    /// Counts one.
    pub(super) fn count(&self, now: Instant) {
        let mut bucket = self.refilled(now);
        bucket.tokens = (bucket.tokens - 1.0).max(-self.burst);
    }

    /// How long the principal has to wait; none when it may ask.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let missing = 1.0 - self.refilled(now).tokens;
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / self.per_second))
    }

    fn refilled(&self, now: Instant) -> std::sync::MutexGuard<'_, Bucket> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * self.per_second).min(self.burst);
        bucket.at = bucket.at.max(now);
        bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let start = Instant::now();
        let hang_ups = HangUps::new(10, 3, start);
        for _ in 0..3 {
            assert_eq!(hang_ups.wait(start), None);
            hang_ups.count(start);
        }
        let wait = hang_ups.wait(start).expect("the burst is used up");
        assert!(wait <= Duration::from_millis(100), "{wait:?}");
        assert_eq!(hang_ups.wait(start + Duration::from_millis(101)), None);
    }
}
