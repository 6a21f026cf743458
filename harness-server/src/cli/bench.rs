//! `harness bench`: how many asks a second, and how long each takes.

mod histogram;
mod load;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use worker_sdk::Payload;
use worker_sdk::payload::JSON;

use super::ask::input::request;
use super::ask::options::duration;
use super::error::CliError;
use super::{PATIENCE, Server, output};
use crate::shutdown::Stops;
use load::{Counts, Load, Order};

/// Not counted: connections grow their windows, memory is touched for the first time.
const WARM_UP: Duration = Duration::from_millis(500);

/// Ask an agent as fast as it answers and print how fast that was
#[derive(Debug, Args)]
#[command(after_help = "\
A closed loop: each of the asks in flight is followed by another when it is answered. The first
half second is not counted. Every ask carries the request, or a JSON string of --bytes bytes, and
takes any reply.
Errors are counted by code beside the answers; one after which no ask can succeed ends the run.
Ctrl-C prints what there is. --json prints {\"requests_per_s\", \"p50_us\", \"p99_us\",
\"errors\": {CODE: count}, \"requests\", \"seconds\"}; quantiles of nothing are null.

Examples:
  harness bench echo
  harness bench count-words '{\"text\": \"one two three\"}' --inflight 8
  harness bench echo --inflight 512 --many --connections 4 --seconds 10 --json")]
pub(super) struct Bench {
    /// The agent's name
    agent: String,

    /// The request, as JSON; what is not JSON is sent as a string
    #[arg(allow_negative_numbers = true, conflicts_with = "bytes")]
    payload: Option<String>,

    /// How many asks are open at any time
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    inflight: u32,

    /// For how long
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: Duration,

    /// The size of a request, quotes included
    #[arg(long, value_name = "B", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=64 << 20))]
    bytes: u32,

    /// Send the asks on one open call a connection, more where its window is too small
    #[arg(long)]
    many: bool,

    /// Over how many connections
    #[arg(long, value_name = "C", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_024))]
    connections: u32,

    /// The timeout of each ask
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    /// How many threads work; one is the fastest on up to two processors
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) threads: NonZero<usize>,

    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Figures {
    requests_per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    errors: BTreeMap<&'static str, u64>,
    requests: u64,
    seconds: f64,
}

impl Bench {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let mut stops =
            Stops::listen().map_err(|error| CliError::io("cannot listen to signals", error))?;
        let lanes = tokio::select! {
            lanes = self.lanes() => lanes?,
            signal = stops.next() => {
                let what = "nothing was asked yet";
                return Err(CliError::Stopped { signal, what });
            }
        };
        let order = Order {
            agent: self.agent.clone(),
            payload: match &self.payload {
                Some(text) => request(Some(text))?,
                None => payload(self.bytes),
            },
            timeout: self.timeout,
            begin: Instant::now() + WARM_UP,
        };
        let mut load = Load::start(lanes, &order);
        let end = tokio::time::Instant::from_std(order.begin + self.seconds);
        let failed = tokio::select! {
            () = tokio::time::sleep_until(end) => None,
            _ = stops.next() => None,
            error = load.failed() => Some(error),
        };
        let seconds = order.begin.elapsed();
        let figures = Figures::of(load.stop().await, seconds);
        match failed {
            None => figures.print(self.json),
            Some(error) => {
                if !self.json && figures.requests > 0 {
                    figures.print(false)?;
                }
                Err(self.server.explain(error))
            }
        }
    }

    async fn lanes(&self) -> Result<Vec<load::Lane>, CliError> {
        let connections = self.connections.min(self.inflight);
        let mut harnesses = Vec::new();
        for _ in 0..connections {
            harnesses.push(self.server.connect(PATIENCE).await?);
        }
        let lanes = load::lanes(&harnesses, self.inflight as usize, self.many);
        self.server.within(PATIENCE, lanes).await
    }
}

impl Figures {
    fn of(counts: Counts, measured: Duration) -> Self {
        let (seconds, requests) = (measured.as_secs_f64(), counts.answered.total());
        let per_s = if requests > 0 {
            requests as f64 / seconds
        } else {
            0.0
        };
        Self {
            requests_per_s: (per_s * 10.0).round() / 10.0,
            p50_us: counts.answered.quantile_us(0.50),
            p99_us: counts.answered.quantile_us(0.99),
            errors: counts.errors,
            requests,
            seconds,
        }
    }

    fn print(&self, json: bool) -> Result<(), CliError> {
        if json {
            return output::json(self);
        }
        let us =
            |quantile: Option<f64>| quantile.map_or("-".to_owned(), |us| format!("{us:.1} us"));
        let mut text = format!(
            "requests/s  {:.0}\np50         {}\np99         {}\n",
            self.requests_per_s,
            us(self.p50_us),
            us(self.p99_us)
        );
        for (code, count) in &self.errors {
            text.push_str(&format!("errors      {count} {code}\n"));
        }
        output::bytes(text.as_bytes())
    }
}

/// A JSON string of so many bytes.
fn payload(bytes: u32) -> Payload {
    let mut text = vec![b'x'; bytes as usize];
    if let [first, .., last] = &mut *text {
        (*first, *last) = (b'"', b'"');
    }
    Payload::new(JSON, text)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "write it as 5 or 0.5".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(span) if !span.is_zero() && span <= Duration::from_secs(86_400) => Ok(span),
        Ok(_) | Err(_) => Err("more than 0, at most 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_a_json_string_of_its_size() {
        for bytes in [2, 3, 64] {
            let payload = payload(bytes);
            assert_eq!(payload.data().len(), bytes as usize);
            assert!(payload.to_json::<String>().is_ok());
        }
    }
}
