//! What a seed sets up: the limits, the workers and their manners, and how fast the wire is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use harness_server::dispatch::{Limits, Offer, WorkerInfo};
use harness_server::ids::{AgentKey, SchemaId};
use harness_server::journal;
use harness_server::slot::{self, Level};

use crate::model::worker_id;
use crate::random::Random;

pub(crate) const AGENTS: [&str; 3] = ["echo", "upper", "lower"];

const SECOND: Duration = Duration::from_secs(1);

/// Labels a slot may have; a selector is one of them, too.
pub(crate) const LABELS: [&[(&str, &str)]; 4] = [
    &[],
    &[("gpu", "a100")],
    &[("gpu", "a100"), ("zone", "b")],
    &[("zone", "b")],
];

/// One worker's process.
pub(crate) struct Worker {
    pub(crate) agent: usize,
    pub(crate) offer: Arc<Offer>,
    /// Of a hundred deliveries, so many go wrong.
    pub(crate) mischief: u64,
    /// It gives back whatever it gets.
    pub(crate) declines: bool,
    /// Whether the harness has started it, and so knows how it ends.
    pub(crate) of_pool: bool,
    pub(crate) slots: usize,
}

pub(crate) struct Setting {
    pub(crate) limits: Limits,
    pub(crate) workers: Vec<Worker>,
    pub(crate) asks: usize,
    /// When new asks and new calls stop, in microseconds.
    pub(crate) ends_at: u64,
    /// The slowest frame, in microseconds.
    pub(crate) lag: u64,
}

/// One seed of so many is huge.
const HUGE: u64 = 10_000;

impl Setting {
    pub(crate) fn new(seed: u64, random: &mut Random) -> Self {
        let huge = seed % HUGE == HUGE - 1;
        let (workers, asks) = if huge {
            (1500 + random.index(1000), 3000)
        } else if random.percent(2) {
            (10 + random.index(30), 20 + random.index(100))
        } else {
            (random.index(8).min(4), 2 + random.index(9))
        };
        let limits = limits(random, huge);
        let workers = (0..workers).map(|n| worker(n, random)).collect();
        Self {
            limits,
            workers,
            asks,
            ends_at: random.micros(2_000_000, 40_000_000),
            lag: random.pick(&[200, 200, 5_000, 5_000, 100_000, 2_000_000]),
        }
    }
}

fn limits(random: &mut Random, huge: bool) -> Limits {
    let mut limits = Limits {
        slot: slot::Rules {
            heartbeat_interval: 5 * SECOND,
            unacked_entries: random.pick(&[1, 2, 4]),
            unacked_bytes: 1000,
            idle_stopping_timeout: 5 * SECOND,
        },
        accept_timeout: 5 * SECOND,
        accept_timeout_per_mib: SECOND,
        queue_runs: random.pick(&[0, 1, 3, 20, 20]),
        queue_bytes: random.pick(&[500, 3_000, 100_000]),
        worker_slots: random.pick(&[1, 2, 8, 8, 8, 8, 8, 8]),
        agents: random.pick(&[1, 2, 8, 8, 8, 8, 8, 8]),
        agent_classes: random.pick(&[1, 2, 8, 8, 8, 8, 8, 8]),
        agent_kept: 3600 * SECOND,
        connecting_timeout: 10 * SECOND,
        connecting_retry: SECOND / 2,
        release_timeout: 600 * SECOND,
        durable_runs: 0,
        durable_journal: journal::Limits {
            entries: 0,
            bytes: 0,
        },
        reattach_window: Duration::ZERO,
        interactive_reattach_window: Duration::ZERO,
        away_runs: 10,
        journal: journal::Limits {
            entries: random.pick(&[1, 3, 100]),
            bytes: random.pick(&[100, 10_000]),
        },
        ended_kept: 60 * SECOND,
        ended_runs: random.pick(&[0, 1, 4, 100]),
        ended_bytes: random.pick(&[0, 100, 1 << 20]),
        unreleased: random.pick(&[0, 1, 3, 100, 100, 100, 100]),
    };
    if huge {
        limits.queue_runs = 1000;
        limits.queue_bytes = 10 << 20;
        limits.agents = 8;
        limits.agent_classes = 8;
    }
    limits
}

fn worker(n: usize, random: &mut Random) -> Worker {
    let agent = if random.percent(70) {
        0
    } else {
        random.index(AGENTS.len())
    };
    let labels = if random.percent(60) {
        LABELS[0]
    } else {
        random.pick(&LABELS)
    };
    let schema = if random.percent(60) {
        0
    } else {
        random.below(4)
    };
    Worker {
        agent,
        offer: Arc::new(Offer {
            worker: worker_id(n),
            info: WorkerInfo {
                name: "w".to_owned(),
                ..WorkerInfo::default()
            },
            agent: AgentKey::new("", AGENTS[agent]),
            version: String::new(),
            description: String::new(),
            request_schema_text: Bytes::new(),
            reply_schema_text: Bytes::new(),
            labels: pairs(labels),
            level: if random.percent(60) {
                Level::Full
            } else {
                Level::Minimal
            },
            max_receive_bytes: if random.percent(80) { 4 << 20 } else { 1500 },
            request_schema: (schema > 0).then_some(SchemaId(schema)),
            peer: "".into(),
        }),
        mischief: random.pick(&[0, 10, 40, 90]),
        declines: random.percent(3),
        of_pool: random.percent(25),
        slots: 1 + random.index(3),
    }
}

pub(crate) fn pairs(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}
