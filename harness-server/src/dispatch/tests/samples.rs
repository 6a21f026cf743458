//! What these tests ask, and what their workers offer.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::{MINUTE, SECOND, TIMEOUT};
use crate::dispatch::{Limits, Offer, WorkerInfo};
use crate::envelope::{Caller, Payload, Request};
use crate::ids::{AgentKey, WorkerId};
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
    }
}

/// An ask, changed by the tests where it matters.
pub(super) struct Ask {
    pub(super) request: Request,
    pub(super) timeout: Duration,
    pub(super) max_attempts: u32,
    pub(super) wait_for_agent: bool,
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
        },
        timeout: TIMEOUT,
        max_attempts: 1,
        wait_for_agent: false,
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

    pub(super) fn max_attempts(self, max_attempts: u32) -> Self {
        Self {
            max_attempts,
            ..self
        }
    }

    pub(super) fn wait_for_agent(self) -> Self {
        Self {
            wait_for_agent: true,
            ..self
        }
    }
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
