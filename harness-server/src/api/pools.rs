//! Pools as messages.

use std::time::Duration;

use harness_proto::relay;

use crate::pool::{PhaseView, ProcessView, Rung, State, StopView};
use crate::supervisor::PoolView;

use super::convert;

/// A pool.
pub(super) fn pool_to_proto(view: PoolView) -> relay::PoolSummary {
    let pool = view.pool;
    let state = match pool.state {
        State::Starting => relay::PoolState::Starting,
        State::Running => relay::PoolState::Running,
        State::BackingOff => relay::PoolState::BackingOff,
        State::CrashLooping => relay::PoolState::CrashLooping,
        State::Stopping => relay::PoolState::Stopping,
    };
    relay::PoolSummary {
        agent: view.agent.name.to_string(),
        state: state.into(),
        size: count(pool.size),
        ready: count(pool.ready),
        crashes: pool.crashes,
        failed_starts: pool.failed_starts,
        last_exit: view.last_exit,
        last_stderr: view.last_stderr,
        next_start: pool.next_start.map(convert::duration_to_proto),
        processes: pool.processes.iter().map(process).collect(),
        stopped: pool.stops.iter().map(stopped).collect(),
    }
}

/// A rung of the kill ladder.
pub(super) fn rung_to_proto(rung: Rung) -> relay::StopRung {
    match rung {
        Rung::CallEnded => relay::StopRung::CallEnded,
        Rung::Sigterm => relay::StopRung::Sigterm,
        Rung::Sigkill => relay::StopRung::Sigkill,
    }
}

fn process(view: &ProcessView) -> relay::PoolProcess {
    let (state, rung) = match view.phase {
        PhaseView::Starting => (relay::PoolProcessState::Starting, None),
        PhaseView::Ready => (relay::PoolProcessState::Ready, None),
        PhaseView::Detached => (relay::PoolProcessState::Detached, None),
        PhaseView::Leaving => (relay::PoolProcessState::Leaving, None),
        PhaseView::Stopping(rung) => (relay::PoolProcessState::Stopping, Some(rung)),
        PhaseView::Exited => (relay::PoolProcessState::Exited, None),
    };
    relay::PoolProcess {
        pid: view.pid.unwrap_or_default(),
        state: state.into(),
        in_state_for: Some(convert::duration_to_proto(view.in_phase_for)),
        rung: rung
            .map_or(relay::StopRung::Unspecified, rung_to_proto)
            .into(),
        answered: view.answered,
    }
}

fn stopped(view: &StopView) -> relay::StoppedProcess {
    let after = |time: Duration| convert::duration_to_proto(time);
    relay::StoppedProcess {
        pid: view.pid.unwrap_or_default(),
        reason: view.reason.to_string(),
        sigterm_after: view.terminated_after.map(after),
        sigkill_after: view.killed_after.map(after),
        reaped_after: Some(after(view.reaped_after)),
        replaced_after: view.replaced_after.map(after),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
