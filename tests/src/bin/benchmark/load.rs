//! A load and what is told of it, in the words of `harness bench`.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

/// A closed loop of asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub(crate) struct Load {
    /// Asks open at any time
    #[arg(long, default_value_t = 64)]
    pub(crate) inflight: usize,
    /// For how long
    #[arg(long, default_value = "2", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// The size of a request
    #[arg(long, default_value_t = 64)]
    pub(crate) bytes: usize,
    /// On one open call a connection
    #[arg(long)]
    pub(crate) many: bool,
    /// Over how many connections
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: usize,
}

/// What a run of it gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) requests_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Load {
    /// Its arguments, for `harness bench` and for the floor's client.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = self.shape();
        arguments.push(format!("--bytes={}", self.bytes));
        arguments
    }

    /// Its arguments for `harness bench`, with another request.
    pub(crate) fn arguments_with(&self, request: &impl Serialize) -> Vec<String> {
        let mut arguments = self.shape();
        arguments.push(serde_json::to_string(request).expect("a request has a JSON form"));
        arguments
    }

    fn shape(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--inflight={}", self.inflight),
            format!("--seconds={}", self.seconds.as_secs_f64()),
            format!("--connections={}", self.connections),
        ];
        arguments.extend(self.many.then(|| "--many".to_owned()));
        arguments
    }
}

impl Told {
    pub(crate) fn of(mut latencies: Vec<Duration>, seconds: Duration) -> Self {
        latencies.sort_unstable();
        Self {
            requests_per_s: latencies.len() as f64 / seconds.as_secs_f64(),
            p50_us: quantile_us(&latencies, 0.50),
            p99_us: quantile_us(&latencies, 0.99),
        }
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "requests_per_s": self.requests_per_s,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "errors": {},
        })
    }

    /// Reads what a client printed.
    ///
    /// # Panics
    /// When an ask failed: a figure of failures is no figure.
    pub(crate) fn read(told: &Value) -> Self {
        let errors = told["errors"].as_object().expect("errors by code");
        assert!(errors.is_empty(), "asks failed: {told}");
        let number = |key: &str| told[key].as_f64().expect("a figure of a load");
        Self {
            requests_per_s: number("requests_per_s"),
            p50_us: number("p50_us"),
            p99_us: number("p99_us"),
        }
    }
}

/// The latency that a share of the sorted ones do not exceed, in microseconds.
pub(crate) fn quantile_us(sorted: &[Duration], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    let at = sorted
        .get(rank.max(1) - 1)
        .expect("latencies of at least one ask");
    at.as_secs_f64() * 1e6
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write it as 5 or 0.5")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
