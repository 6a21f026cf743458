//! The end of a process: the rungs that bring it about, what it counts as, and when its seat is
//! free.

use std::time::Instant;

use crate::ids::ProcessId;

use super::process::{Dialect, Exit, Ladder, Phase, Reason, Rung};
use super::restarts::Next;
use super::{Action, Ended, Pool, Standing, StopView};

/// Ended processes that are remembered for operators.
const STOPS_KEPT: usize = 8;

impl Pool {
    /// Has a process go: it finishes what it has in hand, if it can have anything.
    pub(super) fn retire(
        &mut self,
        now: Instant,
        id: ProcessId,
        reason: Reason,
        actions: &mut Vec<Action>,
    ) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match process.phase {
            Phase::Attached => {
                process.enter(now, Phase::Leaving(reason));
                actions.push(Action::Dismiss(id));
            }
            Phase::Starting { .. } | Phase::Detached { .. } => {
                process.enter(now, Phase::Stopping(Ladder::begin(now, reason)));
                self.climb(now, id, Rung::Sigterm, actions);
            }
            Phase::Leaving(_) | Phase::Stopping(_) | Phase::Exited(_) => {}
        }
    }

    pub(super) fn climb(
        &mut self,
        now: Instant,
        id: ProcessId,
        rung: Rung,
        actions: &mut Vec<Action>,
    ) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Phase::Stopping(ladder) = &mut process.phase else {
            return;
        };
        ladder.climb(now, rung);
        let after = now.saturating_duration_since(ladder.began);
        match rung {
            Rung::CallEnded => {}
            Rung::Sigterm => {
                self.totals.sigterm.add(after);
                actions.push(Action::Terminate(id));
            }
            Rung::Sigkill => {
                self.totals.sigkill.add(after);
                actions.push(Action::Kill(id));
            }
        }
    }

    pub(super) fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let ids: Vec<ProcessId> = self.processes.keys().copied().collect();
        for id in ids {
            self.tick_process(now, id, actions);
        }
    }

    fn tick_process(&mut self, now: Instant, id: ProcessId, actions: &mut Vec<Action>) {
        let (min_uptime, max_age) = (self.rules.restart.min_uptime, self.rules.max_age);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if let Some(ready_at) = process.ready_at {
            process.worn |= !max_age.is_zero() && now >= ready_at + max_age;
            if process.serves() && !process.proved && now >= ready_at + min_uptime {
                process.proved = true;
                self.restarts.proved();
            }
        }
        match process.phase {
            Phase::Starting { by } if now >= by => {
                process.enter(now, Phase::Stopping(Ladder::begin(now, Reason::NotReady)));
                let for_replacement = process.replaces.is_some();
                self.climb(now, id, Rung::Sigterm, actions);
                self.failed_start(now, for_replacement);
            }
            Phase::Detached { by } if now >= by => {
                process.enter(now, Phase::Stopping(Ladder::begin(now, Reason::NotReady)));
                self.climb(now, id, Rung::Sigterm, actions);
            }
            Phase::Stopping(ladder) => {
                if let Some((due, rung)) = ladder.next(&self.rules.stop)
                    && now >= due
                {
                    self.climb(now, id, rung, actions);
                }
            }
            Phase::Starting { .. }
            | Phase::Attached
            | Phase::Detached { .. }
            | Phase::Leaving(_)
            | Phase::Exited(_) => {}
        }
    }

    pub(super) fn not_started(&mut self, now: Instant, id: ProcessId, actions: &mut Vec<Action>) {
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        // Told to go before it could be, it has failed nothing.
        if process.serves() {
            self.failed_start(now, process.replaces.is_some());
            actions.push(Action::Ended(id, Ended::FailedStart));
        }
    }

    pub(super) fn exited(
        &mut self,
        now: Instant,
        id: ProcessId,
        (exit, was_asked): (Exit, bool),
        actions: &mut Vec<Action>,
    ) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let (ended, ladder) = match process.phase {
            Phase::Exited(_) => return,
            Phase::Stopping(ladder) => (Ended::Stopped(ladder.reason), Some(ladder)),
            // It was to leave, and does so by itself.
            Phase::Leaving(reason) if exit == Exit::Code(0) => (Ended::Stopped(reason), None),
            Phase::Starting { .. } => (Ended::FailedStart, None),
            Phase::Attached | Phase::Detached { .. } | Phase::Leaving(_) => {
                let ended = if exit == Exit::Code(0) && process.answered > 0 {
                    Ended::Normal
                } else if was_asked {
                    Ended::Crashed
                } else {
                    Ended::FailedStart
                };
                (ended, None)
            }
        };
        let was_useful = process.answered > 0 || process.proved;
        let for_replacement = process.replaces.is_some();
        process.enter(now, Phase::Exited(ladder));
        self.last_exit = Some(exit);
        actions.push(Action::Ended(id, ended));
        match ended {
            Ended::Normal | Ended::Stopped(_) => {}
            Ended::FailedStart => self.failed_start(now, for_replacement),
            Ended::Crashed => self.crashed(now, was_useful, for_replacement),
        }
    }

    /// One that was ended before it was given a request counts as one that died then: the next
    /// would do the same.
    pub(super) fn was_useless(&mut self, now: Instant) {
        match self.rules.dialect {
            Dialect::Jsonl => self.failed_start(now, false),
            Dialect::Grpc => self.crashed(now, false, false),
        }
    }

    fn failed_start(&mut self, now: Instant, for_replacement: bool) {
        self.totals.failed_starts += 1;
        let next = self.restarts.failed_start(&self.rules.restart);
        self.follow(now, next, for_replacement);
    }

    fn crashed(&mut self, now: Instant, was_useful: bool, for_replacement: bool) {
        self.totals.crashes += 1;
        let limits = &self.rules.restart;
        let next = self.restarts.crashed(now, limits, was_useful);
        self.follow(now, next, for_replacement);
    }

    pub(super) fn reaped(&mut self, now: Instant, id: ProcessId) {
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        let ladder = match process.phase {
            Phase::Stopping(ladder) | Phase::Exited(Some(ladder)) => ladder,
            Phase::Starting { .. }
            | Phase::Attached
            | Phase::Detached { .. }
            | Phase::Leaving(_)
            | Phase::Exited(None) => return,
        };
        // One that went when it was told to is no news.
        if ladder.rung == Rung::CallEnded && !is_forced(ladder.reason) {
            return;
        }
        if self.stops.len() >= STOPS_KEPT {
            self.stops.pop_front();
        }
        let after = |at: Instant| at.saturating_duration_since(ladder.began);
        self.totals.reaped.add(after(now));
        self.stops.push_back(StopView {
            process: id,
            pid: process.pid,
            reason: ladder.reason,
            began: ladder.began,
            terminated_after: ladder.climbed[Rung::Sigterm as usize].map(after),
            killed_after: ladder.climbed[Rung::Sigkill as usize].map(after),
            reaped_after: after(now),
            replaced_after: None,
        });
    }

    /// A process is ready: it takes the seat that has been empty longest after a stop.
    pub(super) fn filled(&mut self, now: Instant, id: ProcessId) {
        let empty = |stop: &&mut StopView| {
            is_forced(stop.reason) && stop.replaced_after.is_none() && stop.process < id
        };
        if let Some(stop) = self.stops.iter_mut().find(empty) {
            stop.replaced_after = Some(now.saturating_duration_since(stop.began));
        }
    }

    /// What follows a failure.
    fn follow(&mut self, now: Instant, next: Next, for_replacement: bool) {
        match (next, &self.standing) {
            (Next::GiveUp(why), Standing::Open) => {
                self.standing = Standing::CrashLooping(why);
                self.seats_wait.clear();
            }
            (Next::BackOff(retry), Standing::Open) => {
                let until = now + self.waits.wait(&self.rules.back_off, retry);
                if for_replacement {
                    self.replacing_waits = Some(until);
                } else {
                    let place = self.seats_wait.partition_point(|at| *at <= until);
                    self.seats_wait.insert(place, until);
                }
            }
            (
                Next::AtOnce | Next::BackOff(_) | Next::GiveUp(_),
                Standing::Open | Standing::CrashLooping(_) | Standing::Leaving,
            ) => {}
        }
    }
}

/// Whether the process was to serve on, had it done as it should.
fn is_forced(reason: Reason) -> bool {
    match reason {
        Reason::Cancelled | Reason::Broke | Reason::Useless | Reason::NotReady => true,
        Reason::Spent | Reason::Replaced | Reason::Resized | Reason::Leaving => false,
    }
}
