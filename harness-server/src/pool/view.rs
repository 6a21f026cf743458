//! What operators are told of a pool: a picture of it at one instant.

use std::time::{Duration, Instant};

use crate::ids::ProcessId;

use super::process::{Exit, Phase, Reason, Rung};
use super::{Pool, Standing, Totals};

/// Where a pool stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not all processes are ready yet.
    Starting,
    /// All processes are ready.
    Running,
    /// Some seats wait for their back-off.
    BackingOff,
    /// Past its limits; nothing is started until a restart or a reload.
    CrashLooping,
    /// Leaving.
    Stopping,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct View {
    /// Where it stands.
    pub state: State,
    /// Seats.
    pub size: usize,
    /// Processes that have a call, with or without a request.
    pub ready: usize,
    /// Crashes within the window.
    pub crashes: u32,
    /// Starts that failed in a row.
    pub failed_starts: u32,
    /// How the last process ended.
    pub last_exit: Option<Exit>,
    /// How long until the next start.
    pub next_start: Option<Duration>,
    /// Its processes, the oldest first.
    pub processes: Vec<ProcessView>,
    /// The latest processes the harness has ended, the oldest first.
    pub stops: Vec<StopView>,
    /// What has happened since it began.
    pub totals: Totals,
}

/// One process.
#[derive(Clone, Debug)]
pub struct ProcessView {
    /// Which.
    pub process: ProcessId,
    /// Its process id, once it has one.
    pub pid: Option<u32>,
    /// Where it stands.
    pub phase: PhaseView,
    /// How long it has stood there.
    pub in_phase_for: Duration,
    /// Requests it has answered.
    pub answered: u64,
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseView {
    /// Not ready yet.
    Starting,
    /// It has a call.
    Ready,
    /// It should have a call and has none.
    Detached,
    /// It finishes and goes.
    Leaving,
    /// It is being ended, and stands on this rung.
    Stopping(Rung),
    /// Its main process has ended; something of it remains.
    Exited,
}

/// A process the harness has ended, with how long each rung took from the end of its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopView {
    /// Which.
    pub process: ProcessId,
    /// Its process id, if it came to have one.
    pub pid: Option<u32>,
    /// Why.
    pub reason: Reason,
    /// When its call ended.
    pub began: Instant,
    /// When SIGTERM went to its group; none if that was not needed.
    pub terminated_after: Option<Duration>,
    /// When SIGKILL went to its group; none if that was not needed.
    pub killed_after: Option<Duration>,
    /// When nothing of it was left.
    pub reaped_after: Duration,
    /// When another process was ready in its seat; none while there is none.
    pub replaced_after: Option<Duration>,
}

impl Pool {
    /// A picture of it.
    #[must_use]
    pub fn view(&self, now: Instant) -> View {
        let ready = self.processes.values().filter(|process| {
            matches!(process.phase, Phase::Attached | Phase::Leaving(_)) && !process.replaced
        });
        let ready = ready.count();
        let state = match self.standing {
            Standing::Leaving => State::Stopping,
            Standing::CrashLooping(_) => State::CrashLooping,
            Standing::Open if !self.seats_wait.is_empty() => State::BackingOff,
            Standing::Open if ready < self.rules.size => State::Starting,
            Standing::Open => State::Running,
        };
        let next_start = self.seats_wait.first();
        View {
            state,
            size: self.rules.size,
            ready,
            crashes: self.restarts.recent_crashes(now, &self.rules.restart),
            failed_starts: self.restarts.failed_starts(),
            last_exit: self.last_exit,
            next_start: next_start.map(|at| at.saturating_duration_since(now)),
            processes: self
                .processes
                .values()
                .map(|process| ProcessView {
                    process: process.id,
                    pid: process.pid,
                    phase: phase(&process.phase),
                    in_phase_for: now.saturating_duration_since(process.phase_since),
                    answered: process.answered,
                })
                .collect(),
            stops: self.stops.iter().cloned().collect(),
            totals: self.totals,
        }
    }
}

fn phase(phase: &Phase) -> PhaseView {
    match phase {
        Phase::Starting { .. } => PhaseView::Starting,
        Phase::Attached => PhaseView::Ready,
        Phase::Detached { .. } => PhaseView::Detached,
        Phase::Leaving(_) => PhaseView::Leaving,
        Phase::Stopping(ladder) => PhaseView::Stopping(ladder.rung),
        Phase::Exited(_) => PhaseView::Exited,
    }
}
