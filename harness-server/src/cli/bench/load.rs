//! A closed loop of asks: each asker asks again as soon as it is answered.
//!
//! Owns connections, askers and counts. An asker is one task for the whole time; what it asks goes as
//! an application's asks do, through the SDK.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use worker_sdk::client::Many;
use worker_sdk::{Answer, Error, ErrorKind, Harness, Payload};

use super::histogram::Histogram;

/// What is asked, and until when.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) agent: String,
    pub(super) payload: Payload,
    pub(super) timeout: Duration,
    /// What is answered before this is not counted.
    pub(super) begin: Instant,
}

/// What was answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) answered: Histogram,
    pub(super) errors: BTreeMap<&'static str, u64>,
}

/// The way an asker's asks go.
#[derive(Debug, Clone)]
pub(super) enum Lane {
    Unary(Harness),
    Many(Many),
}

/// A lane for each of `inflight` askers: spread over the connections, and with `many` on as many
/// calls as their windows need.
pub(super) async fn lanes(
    connections: &[Harness],
    inflight: usize,
    many: bool,
) -> Result<Vec<Lane>, Error> {
    let mut lanes = Vec::with_capacity(inflight);
    for (at, harness) in connections.iter().enumerate() {
        let mut askers = inflight / connections.len();
        askers += usize::from(at < inflight % connections.len());
        while askers > 0 {
            let (lane, takes) = if many {
                let call = harness.ask_many().await?;
                let window = call.window();
                (Lane::Many(call), window)
            } else {
                (Lane::Unary(harness.clone()), askers)
            };
            let taken = askers.min(takes);
            lanes.extend(std::iter::repeat_n(lane, taken));
            askers -= taken;
        }
    }
    Ok(lanes)
}

/// A running load.
#[derive(Debug)]
pub(super) struct Load {
    askers: JoinSet<Error>,
    counts: Vec<Arc<Mutex<Counts>>>,
}

impl Load {
    /// Starts an asker on each lane. Few enough counts that their memory is bounded, enough that
    /// askers seldom meet on one.
    pub(super) fn start(lanes: Vec<Lane>, order: &Order) -> Self {
        let counts: Vec<_> = (0..COUNTS).map(|_| Arc::default()).collect();
        let mut askers = JoinSet::new();
        for (lane, count) in lanes.into_iter().zip(counts.iter().cycle()) {
            askers.spawn(asker(lane, order.clone(), Arc::clone(count)));
        }
        Self { askers, counts }
    }

    /// Waits for an error that makes going on pointless.
    pub(super) async fn failed(&mut self) -> Error {
        match self.askers.join_next().await {
            Some(error) => error.expect("an asker must not panic"),
            None => std::future::pending().await,
        }
    }

    /// Ends all asks and gives the counts.
    pub(super) async fn stop(mut self) -> Counts {
        self.askers.shutdown().await;
        let mut sum = Counts::default();
        for counts in &self.counts {
            let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            sum.answered.merge(&counts.answered);
            for (code, count) in &counts.errors {
                *sum.errors.entry(code).or_default() += count;
            }
        }
        sum
    }
}

const COUNTS: usize = 8;

async fn asker(lane: Lane, order: Order, counts: Arc<Mutex<Counts>>) -> Error {
    loop {
        let asked = Instant::now();
        let answer = ask(&lane, &order).await;
        let answered = Instant::now();
        if answered >= order.begin {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            match &answer {
                Ok(_) => counts.answered.record(answered - asked),
                Err(error) => *counts.errors.entry(error.code_name()).or_default() += 1,
            }
        }
        match answer {
            Err(error) if is_final(error.kind()) => return error,
            Ok(_) | Err(_) => {}
        }
    }
}

async fn ask(lane: &Lane, order: &Order) -> Result<Answer<Payload>, Error> {
    let (agent, payload) = (order.agent.as_str(), &order.payload);
    match lane {
        Lane::Unary(harness) => harness.ask(agent, payload).timeout(order.timeout).await,
        Lane::Many(many) => many.ask(agent, payload).timeout(order.timeout).await,
    }
}

/// Whether every later ask would end the same.
fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidRequest
            | ErrorKind::UnknownAgent
            | ErrorKind::PayloadTooLarge
            | ErrorKind::Unauthenticated
            | ErrorKind::PermissionDenied
            | ErrorKind::Unimplemented
            | ErrorKind::ShuttingDown
            | ErrorKind::Unreachable
            | ErrorKind::Transport
    )
}
