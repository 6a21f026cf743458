//! What a seed of durable runs sets up: limits, workers, how slow wire and disk are, and what befalls
//! the harness.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use harness_server::dispatch::{Limits, Offer, WorkerInfo};
use harness_server::ids::{AgentKey, RunId, SchemaId, WorkerId};
use harness_server::slot::{self, Level};
use harness_server::{envelope, journal};
use uuid::Uuid;

use crate::random::Random;
use crate::setting::{AGENTS, LABELS, pairs};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Deliveries in a row that may end uncounted.
pub(super) const UNCOUNTED_MAX: u32 = 2;

/// Workers that a run may kill.
pub(super) const POISON_MAX: u32 = 3;

/// Ids of durable runs are from here on.
const DURABLE: u128 = 1 << 64;

pub(super) fn durable_id(number: u64) -> RunId {
    RunId(Uuid::from_u128(DURABLE + u128::from(number)))
}

pub(super) fn ask_id(number: u64) -> RunId {
    RunId(Uuid::from_u128(u128::from(number) + 1))
}

pub(super) fn is_durable(run: RunId) -> bool {
    run.0.as_u128() >= DURABLE
}

pub(super) fn process_id(number: u64) -> WorkerId {
    WorkerId(Uuid::from_u128(u128::from(number) + 1))
}

/// A worker with one slot, or one of several that a process has.
pub(super) struct Manners {
    /// What its hello offers, but for the process.
    pub(super) offer: Offer,
    /// Of a hundred requests, so many go wrong.
    pub(super) mischief: u64,
    pub(super) of_pool: bool,
    /// Its process dies of whatever it gets.
    pub(super) dies: bool,
}

pub(super) struct Setting {
    pub(super) limits: Limits,
    pub(super) workers: Vec<Manners>,
    pub(super) starts: usize,
    pub(super) asks: usize,
    /// When new runs and new calls stop, in microseconds.
    pub(super) ends_at: u64,
    /// The slowest frame, and the slowest commit, in microseconds.
    pub(super) lag: u64,
    pub(super) fsync: u64,
    /// After how many events the harness is killed, each time it is.
    pub(super) crashes: Vec<u64>,
}

impl Setting {
    pub(super) fn new(random: &mut Random) -> Self {
        let workers = 1 + random.index(4);
        let crashes = random.pick(&[0, 1, 1, 2, 4]);
        let mut after = 0;
        let crashes = (0..crashes).map(|_| {
            after += 1 + random.below(60);
            after
        });
        let crashes = crashes.collect();
        Self {
            limits: limits(random),
            workers: (0..workers).map(|_| manners(random)).collect(),
            starts: 1 + random.index(6),
            asks: random.pick(&[0, 0, 1, 3]),
            ends_at: random.micros(2_000_000, 40_000_000),
            lag: random.pick(&[200, 5_000, 100_000, 2_000_000]),
            fsync: random.pick(&[100, 5_000, 100_000, 3_000_000]),
            crashes,
        }
    }
}

fn limits(random: &mut Random) -> Limits {
    Limits {
        slot: slot::Rules {
            heartbeat_interval: 5 * SECOND,
            unacked_entries: random.pick(&[1, 2, 4]),
            unacked_bytes: 1000,
            idle_stopping_timeout: 5 * SECOND,
        },
        accept_timeout: 5 * SECOND,
        accept_timeout_per_mib: SECOND,
        queue_runs: 20,
        queue_bytes: 100_000,
        worker_slots: 8,
        agents: 8,
        agent_classes: 8,
        agent_kept: 3600 * SECOND,
        connecting_timeout: 10 * SECOND,
        connecting_retry: SECOND / 2,
        release_timeout: 600 * SECOND,
        durable_runs: random.pick(&[2, 100, 100, 100]),
        durable_journal: journal::Limits {
            entries: random.pick(&[6, 1000, 1000]),
            bytes: random.pick(&[300, 100_000, 100_000]),
        },
        reattach_window: random.pick(&[Duration::ZERO, SECOND, 10 * SECOND, 10 * SECOND]),
        interactive_reattach_window: Duration::ZERO,
        away_runs: 10,
        journal: journal::Limits {
            entries: 100,
            bytes: 10_000,
        },
        ended_kept: 60 * SECOND,
        ended_runs: 100,
        ended_bytes: 1 << 20,
        unreleased: random.pick(&[1, 100, 100]),
    }
}

fn manners(random: &mut Random) -> Manners {
    let version = random.mostly(60, "1", &["2", ""]);
    let schema = random.mostly(80, 0, &[1, 2]);
    let level = match random.percent(80) {
        true => Level::Full,
        false => Level::Minimal,
    };
    let max_receive_bytes = random.mostly(90, 4 << 20, &[700]);
    let labels = random.mostly(70, LABELS[0], &LABELS);
    Manners {
        offer: Offer {
            worker: process_id(0),
            info: WorkerInfo {
                name: "w".to_owned(),
                ..WorkerInfo::default()
            },
            agent: AgentKey::new("", random.mostly(80, AGENTS[0], &[AGENTS[1]])),
            version: version.to_owned(),
            description: String::new(),
            request_schema_text: Bytes::new(),
            reply_schema_text: Bytes::new(),
            labels: pairs(labels),
            level,
            max_receive_bytes,
            request_schema: (schema > 0).then_some(SchemaId(schema)),
            peer: "".into(),
        },
        mischief: random.pick(&[0, 10, 30, 80]),
        of_pool: random.percent(30),
        dies: random.percent(8),
    }
}

/// Who asks.
pub(super) fn caller() -> envelope::Caller {
    envelope::Caller {
        subject: Arc::from("a"),
        namespace: Arc::from("default"),
    }
}
