//! What these tests ask, and what their workers offer.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::{MINUTE, SECOND, TIMEOUT};
use crate::dispatch::{Limits, Offer, Placing, WorkerInfo};
use crate::envelope::{Caller, Payload, Request};
use crate::ids::{AgentKey, Delivery, WorkerId};
use crate::retry::Policy;
use crate::slot::{self, Level};

pub(super) fn limits() -> Limits {
    Limits {
        slot: slot::Rules {
            heartbeat_interval: 5 * SECOND,
            unacked_entries: 4,
            unacked_bytes: 1000,
            idle_stopping_timeout: 5 * SECOND,
        },
        accept_timeout: 5 * SECOND,
        accept_timeout_per_mib: SECOND,
        queue_runs: 10,
        queue_bytes: 10_000,
        worker_slots: 8,
        agents: 4,
        agent_classes: 3,
        agent_kept: 60 * MINUTE,
        connecting_timeout: 10 * SECOND,
        connecting_retry: SECOND / 2,
        release_timeout: 10 * MINUTE,
        unreleased: 100,
        journal: crate::journal::Limits {
            entries: 8,
            bytes: 1_000,
        },
        durable_runs: 5,
        durable_journal: crate::journal::Limits {
            entries: 12,
            bytes: 1_000,
        },
        reattach_window: 10 * SECOND,
        interactive_reattach_window: Duration::ZERO,
        away_runs: 10,
        ended_kept: MINUTE,
        ended_runs: 50,
        ended_bytes: 1_000,
    }
}

/// An ask, changed by the tests where it matters.
pub(super) struct Ask {
    pub(super) request: Request,
    pub(super) timeout: Duration,
    pub(super) retry: Policy,
    pub(super) placing: Placing,
}

pub(super) fn ask(agent: &str) -> Ask {
    Ask {
        request: Request {
            agent: AgentKey::new("", agent),
            payload: Payload::json(&"hello".into()),
            metadata: HashMap::new(),
            caller: Caller {
                subject: "anonymous".into(),
                namespace: "default".into(),
            },
            trace: None,
            parent: None,
            depth: 0,
            durable: None,
        },
        timeout: TIMEOUT,
        retry: Policy::attempts(1),
        placing: Placing::default(),
    }
}

impl Ask {
    /// With a payload of this many bytes.
    pub(super) fn bytes(mut self, bytes: usize) -> Self {
        self.request.payload.data = vec![b'1'; bytes].into();
        self
    }

    pub(super) fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(super) fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.retry.max_attempts = max_attempts;
        self
    }

    pub(super) fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.retry.attempt_timeout = Some(timeout);
        self
    }

    pub(super) fn wait_for_agent(mut self) -> Self {
        self.placing.wait_for_agent = true;
        self
    }

    pub(super) fn priority(mut self, priority: i32) -> Self {
        self.placing.priority = priority;
        self
    }

    /// Only for slots with these labels.
    pub(super) fn select(mut self, labels: &[(&str, &str)]) -> Self {
        self.placing.selector = pairs(labels);
        self
    }

    /// Asked by the agent that works on this.
    pub(super) fn parent(mut self, parent: Delivery) -> Self {
        self.request.parent = Some(parent);
        self
    }
}

pub(super) fn pairs(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}

/// An offer of a full level worker.
pub(super) fn offer(agent: &str, worker: u128) -> Offer {
    Offer {
        worker: WorkerId(Uuid::from_u128(worker)),
        info: WorkerInfo {
            name: format!("w{worker}"),
            ..WorkerInfo::default()
        },
        agent: AgentKey::new("", agent),
        version: String::new(),
        description: String::new(),
        request_schema_text: Bytes::new(),
        reply_schema_text: Bytes::new(),
        labels: BTreeMap::new(),
        level: Level::Full,
        max_receive_bytes: 4 << 20,
        request_schema: None,
        peer: "test".into(),
    }
}

/// The same, at the minimal level: it owes no heartbeats, so time may pass.
pub(super) fn minimal(agent: &str, worker: u128) -> Offer {
    Offer {
        level: Level::Minimal,
        ..offer(agent, worker)
    }
}

/// The same, with labels.
pub(super) fn labelled(agent: &str, worker: u128, labels: &[(&str, &str)]) -> Offer {
    Offer {
        labels: pairs(labels),
        ..minimal(agent, worker)
    }
}
