//! The admin answers as the client's plain types.
//!
//! Owns conversions only.

use std::time::Duration;

use harness_proto::v1;

use super::duration_in;
use super::runs::bare;
use super::status::kind_in;
use crate::client::admin::{Agent, Limits, ServerInfo, Slot, SlotState, Unreleased, Worker};
use crate::client::pools::{Pool, PoolProcess, PoolState, StoppedProcess};

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
    let rung = bare(work.rung().as_str_name(), "STOP_RUNG_");
    let code = kind_in(work.code())
        .map_or("UNSPECIFIED", |kind| kind.name())
        .to_owned();
    Unreleased {
        run_id: work.run_id,
        attempt: work.attempt,
        code,
        rung,
        ended_ago: span(work.ended_ago),
        rung_ago: span(work.rung_ago),
    }
}

pub(crate) fn pool(pool: v1::PoolSummary) -> Pool {
    let state = match pool.state() {
        v1::PoolState::Unspecified => PoolState::Unknown,
        v1::PoolState::Starting => PoolState::Starting,
        v1::PoolState::Running => PoolState::Running,
        v1::PoolState::BackingOff => PoolState::BackingOff,
        v1::PoolState::CrashLooping => PoolState::CrashLooping,
        v1::PoolState::Stopping => PoolState::Stopping,
    };
    Pool {
        agent: pool.agent,
        state,
        size: pool.size,
        ready: pool.ready,
        crashes: pool.crashes,
        failed_starts: pool.failed_starts,
        last_exit: pool.last_exit,
        last_stderr: pool.last_stderr,
        next_start: pool.next_start.map(duration_in),
        processes: pool.processes.into_iter().map(pool_process).collect(),
        stopped: pool.stopped.into_iter().map(stopped_process).collect(),
    }
}

fn pool_process(process: v1::PoolProcess) -> PoolProcess {
    let rung = match process.rung() {
        v1::StopRung::Unspecified => String::new(),
        rung => bare(rung.as_str_name(), "STOP_RUNG_"),
    };
    let state = bare(process.state().as_str_name(), "POOL_PROCESS_STATE_");
    PoolProcess {
        pid: process.pid,
        state,
        in_state_for: span(process.in_state_for),
        rung,
        answered: process.answered,
    }
}

fn stopped_process(process: v1::StoppedProcess) -> StoppedProcess {
    StoppedProcess {
        pid: process.pid,
        reason: process.reason,
        sigterm_after: process.sigterm_after.map(duration_in),
        sigkill_after: process.sigkill_after.map(duration_in),
        reaped_after: span(process.reaped_after),
        replaced_after: process.replaced_after.map(duration_in),
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
