//! Latencies in memory that does not grow.
//!
//! A bucket is at most 1/128 of its value wide, so a quantile is right to 0.8 %, from a nanosecond
//! to centuries.

use std::time::Duration;

/// Buckets to each doubling.
const STEPS: u64 = 128;
const STEPS_LOG2: u32 = STEPS.trailing_zeros();
/// Below STEPS each nanosecond is a bucket; then comes each doubling up to 64 bits.
const BUCKETS: usize = ((64 - STEPS_LOG2 as usize) + 1) * STEPS as usize;

/// Counts of latencies.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    counts: Box<[u64]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS].into(),
            total: 0,
        }
    }
}

impl Histogram {
    pub(super) fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The latency that a share of all do not exceed, in microseconds; None of nothing.
    pub(super) fn quantile_us(&self, share: f64) -> Option<f64> {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let nanos = middle(at?);
        Some((nanos / 100.0).round() / 10.0)
    }
}

fn bucket(nanos: u64) -> usize {
    // How many doublings above the linear part.
    let doublings = (u64::BITS - nanos.leading_zeros()).saturating_sub(STEPS_LOG2 + 1);
    let step = nanos >> doublings;
    (u64::from(doublings) * STEPS + step) as usize
}

fn middle(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    let doublings = (bucket / STEPS).saturating_sub(1);
    let step = bucket - doublings * STEPS;
    let width = (doublings as f64).exp2();
    step as f64 * width + (width - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_right_to_a_hundredth() {
        for nanos in [
            1,
            127,
            128,
            129,
            255,
            256,
            91_000,
            1_234_567,
            60_000_000_000,
            u64::MAX,
        ] {
            let told = middle(bucket(nanos));
            let exact = nanos as f64;
            assert!(
                (told - exact).abs() <= exact / 100.0,
                "{nanos} told as {told}"
            );
        }
    }

    #[test]
    fn quantiles_of_many_are_those_of_their_sum() {
        let (mut low, mut high) = (Histogram::default(), Histogram::default());
        for micros in 1..=500 {
            low.record(Duration::from_micros(micros));
            high.record(Duration::from_micros(500 + micros));
        }
        low.merge(&high);
        assert_eq!(low.total(), 1000);
        let near = |share, expected: f64| {
            let told = low.quantile_us(share).expect("not empty");
            assert!((told - expected).abs() <= expected / 100.0, "{told}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        near(1.0, 1000.0);
        assert_eq!(Histogram::default().quantile_us(0.5), None);
    }
}
