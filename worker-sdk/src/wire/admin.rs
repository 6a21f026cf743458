//! The admin answers as the client's plain types.
//!
//! Owns conversions only.

use std::time::Duration;

use harness_proto::v1;

use super::duration_in;
use super::status::kind_in;
use crate::client::admin::{Agent, Limits, ServerInfo, Slot, SlotState, Unreleased, Worker};

fn span(duration: Option<prost_types::Duration>) -> Duration {
    duration.map_or(Duration::ZERO, duration_in)
}

/// A schema that is no JSON is shown as none; the harness would not have taken it.
fn schema(bytes: &[u8]) -> Option<serde_json::Value> {
    serde_json::from_slice(bytes).ok()
}

pub(crate) fn agent(agent: v1::AgentSummary) -> Agent {
    Agent {
        request_schema: schema(&agent.request_schema),
        reply_schema: schema(&agent.reply_schema),
        name: agent.name,
        versions: agent.versions,
        description: agent.description,
        slots_ready: agent.slots_ready,
        slots_busy: agent.slots_busy,
        slots_other: agent.slots_other,
        queued: agent.queued,
        workers: agent.workers,
        unreleased: agent.unreleased,
    }
}

pub(crate) fn worker(worker: v1::WorkerSummary) -> Worker {
    let info = worker.info.unwrap_or_default();
    Worker {
        worker_id: info.worker_id,
        name: info.name,
        pid: info.pid,
        host: info.host,
        language: info.language,
        sdk_version: info.sdk_version,
        labels: info.labels.into_iter().collect(),
        agent: worker.agent,
        agent_version: worker.agent_version,
        heartbeats: worker.heartbeats,
        draining: worker.draining,
        attached_for: span(worker.attached_for),
        peer: worker.peer,
        slots: worker.slots.into_iter().map(slot).collect(),
        unreleased: worker.unreleased.into_iter().map(unreleased).collect(),
    }
}

fn slot(slot: v1::SlotSummary) -> Slot {
    let state = match slot.state() {
        v1::SlotState::Unspecified => SlotState::Unknown,
        v1::SlotState::Starting => SlotState::Starting,
        v1::SlotState::Ready => SlotState::Ready,
        v1::SlotState::Busy => SlotState::Busy,
        v1::SlotState::Stopping => SlotState::Stopping,
    };
    Slot {
        slot_id: slot.slot_id,
        state,
        in_state_for: span(slot.in_state_for),
        run_id: slot.run_id,
        attempt: slot.attempt,
    }
}

fn unreleased(work: v1::UnreleasedWork) -> Unreleased {
    let code = kind_in(work.code())
        .map_or("UNSPECIFIED", |kind| kind.name())
        .to_owned();
    Unreleased {
        run_id: work.run_id,
        attempt: work.attempt,
        code,
        ended_ago: span(work.ended_ago),
    }
}

pub(crate) fn server_info(info: v1::GetServerInfoResponse) -> ServerInfo {
    let limits = info.limits.unwrap_or_default();
    ServerInfo {
        server_id: info.server_id,
        version: info.version,
        protocol_versions: info.protocol_versions,
        features: info.features,
        up_for: span(info.up_for),
        shutting_down: info.shutting_down,
        listeners: info.listeners,
        limits: Limits {
            payload_bytes: limits.payload_bytes,
            default_timeout: span(limits.default_timeout),
            max_timeout: span(limits.max_timeout),
            queue_runs: limits.queue_runs,
            queue_bytes: limits.queue_bytes,
        },
    }
}
