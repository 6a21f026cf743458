//! The rules of one pool: which processes it starts and when, which are replaced, how one that must
//! go is brought to its end, and when the pool gives up.
//!
//! Pure: time is an argument and chance is handed in; nothing is started or killed here. Which
//! request a process gets is `dispatch`'s decision; what is written to it is the supervisor's.

#![deny(clippy::wildcard_enum_match_arm)]

mod ends;
mod process;
mod restarts;
mod seats;
mod totals;
mod view;

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::ids::ProcessId;
use crate::retry::{Policy, Waits};

use process::{Ladder, Phase, Process};
use restarts::Restarts;

pub use process::{Dialect, Exit, Reason, Rung, Stop};
pub use restarts::{CRASHES_MAX, Restart};
pub use totals::{Climbs, Totals};
pub use view::{PhaseView, ProcessView, State, StopView, View};

/// What a pool keeps to.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Seats: processes that serve at once.
    pub size: usize,
    /// How its processes are spoken to.
    pub dialect: Dialect,
    /// Whether each process answers one request and ends.
    pub per_request: bool,
    /// How long a process may take to be ready, or to come back with a call.
    pub ready_timeout: Duration,
    /// Replace a process when it has answered so many; 0 is never.
    pub max_requests: u64,
    /// Replace a process so long after it was ready; zero is never.
    pub max_age: Duration,
    /// The graces of the kill ladder.
    pub stop: Stop,
    /// When it gives up.
    pub restart: Restart,
    /// How long a seat waits after a failure.
    pub back_off: Policy,
}

/// What happens to a pool.
#[derive(Clone, Debug)]
pub enum Event {
    /// A process executes its command.
    Started {
        /// Which.
        process: ProcessId,
        /// Its process id.
        pid: u32,
    },
    /// A process could not be started; its seat is free.
    NotStarted(ProcessId),
    /// A process has a call, so it can be given requests. After the end of its call before, this
    /// says that its cancelled work has stopped.
    Attached(ProcessId),
    /// A process has answered a request.
    Answered(ProcessId),
    /// A process has no call any more.
    Detached(ProcessId, Detached),
    /// The main process has ended. What it has left behind is killed by its guardian.
    Exited {
        /// Which.
        process: ProcessId,
        /// How.
        exit: Exit,
        /// Whether it was ever ready: given a request, or, where it dials back, attached.
        was_asked: bool,
    },
    /// Nothing is left of a process and its descendants: its seat is free.
    Reaped(ProcessId),
    /// An operator wants every process replaced, and a crash loop forgotten.
    Restart,
    /// New rules, which forget a crash loop too.
    Reload {
        /// The rules.
        rules: Rules,
        /// Whether the processes are of another make than those to come.
        replace: bool,
    },
    /// Nothing is started any more; what there is finishes and goes.
    Leave,
    /// Time passed.
    Tick,
}

/// Why a process has no call any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The harness ended it: the deadline passed, or somebody cancelled.
    Cancelled,
    /// The harness ended it: a rule was broken.
    Broke,
    /// It broke a rule, or left without being told to, before it was given a request.
    Useless,
    /// It broke.
    Lost,
    /// It was left in good order with nothing in hand.
    Left,
}

/// What to do about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a process.
    Start(ProcessId),
    /// Give a process no more requests, let it finish the one in hand, then end its call.
    Dismiss(ProcessId),
    /// SIGTERM to its group.
    Terminate(ProcessId),
    /// SIGKILL to its group.
    Kill(ProcessId),
    /// For the log: what a process has come to.
    Ended(ProcessId, Ended),
}

/// What a process has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ended by itself in good order.
    Normal,
    /// The harness ended it.
    Stopped(Reason),
    /// It never became ready; in JSON Lines, it ended before it was given a request.
    FailedStart,
    /// It died by itself.
    Crashed,
}

/// Whether a pool starts processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Open,
    /// Past its limits it does not, for this reason, until a restart or a reload.
    CrashLooping(String),
    /// It leaves.
    Leaving,
}

/// One pool.
pub struct Pool {
    rules: Rules,
    waits: Box<dyn Waits>,
    standing: Standing,
    next_id: u64,
    processes: BTreeMap<ProcessId, Process>,
    restarts: Restarts,
    /// When the empty seats that back off may be filled, the earliest first.
    seats_wait: Vec<Instant>,
    /// Until when no replacement is started, after one that failed.
    replacing_waits: Option<Instant>,
    last_exit: Option<Exit>,
    /// The latest processes the harness has ended.
    stops: VecDeque<StopView>,
    totals: Totals,
}

impl Pool {
    /// A pool without processes; the first `Tick` starts them.
    #[must_use]
    pub fn new(rules: Rules, waits: Box<dyn Waits>) -> Self {
        Self {
            rules,
            waits,
            standing: Standing::Open,
            next_id: 1,
            processes: BTreeMap::new(),
            restarts: Restarts::default(),
            seats_wait: Vec::new(),
            replacing_waits: None,
            last_exit: None,
            stops: VecDeque::new(),
            totals: Totals::default(),
        }
    }

    /// What it keeps to.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether it starts processes.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Whether it has left and nothing of it remains.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.standing == Standing::Leaving && self.processes.is_empty()
    }

    /// Applies one event; what to do is added to `actions`, in order.
    pub fn apply(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Started { process, pid } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.pid = Some(pid);
                }
            }
            Event::NotStarted(process) => self.not_started(now, process, actions),
            Event::Attached(process) => self.attached(now, process, actions),
            // Most answers change nothing about seats.
            Event::Answered(process) => {
                if !self.answered(process) {
                    return;
                }
            }
            Event::Detached(process, why) => self.detached(now, process, why, actions),
            Event::Exited {
                process,
                exit,
                was_asked,
            } => self.exited(now, process, (exit, was_asked), actions),
            Event::Reaped(process) => self.reaped(now, process),
            Event::Restart => self.restart(true),
            Event::Reload { rules, replace } => {
                self.rules = rules;
                self.restart(replace);
            }
            Event::Leave => {
                self.standing = Standing::Leaving;
                self.seats_wait.clear();
            }
            Event::Tick => self.tick(now, actions),
        }
        self.settle(now, actions);
    }

    fn attached(&mut self, now: Instant, id: ProcessId, actions: &mut Vec<Action>) {
        let believes = !self.rules.per_request;
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match process.phase {
            Phase::Starting { .. } => {
                process.ready_at = Some(now);
                process.enter(now, Phase::Attached);
                let replaces = process.replaces.take();
                self.filled(now, id);
                if let Some(old) = replaces.and_then(|old| self.processes.get_mut(&old)) {
                    old.replaced = true;
                    let old = old.id;
                    self.retire(now, old, Reason::Replaced, actions);
                }
            }
            Phase::Detached { .. } => process.enter(now, Phase::Attached),
            Phase::Stopping(ladder)
                if believes
                    && ladder.reason == Reason::Cancelled
                    && ladder.rung == Rung::CallEnded =>
            {
                let after = now.saturating_duration_since(ladder.began);
                self.totals.released.add(after);
                process.enter(now, Phase::Attached);
            }
            Phase::Stopping(_) => actions.push(Action::Dismiss(id)),
            Phase::Attached | Phase::Leaving(_) | Phase::Exited(_) => {}
        }
    }

    /// A process has answered; whether it is to be replaced from now on.
    fn answered(&mut self, id: ProcessId) -> bool {
        let max_requests = self.rules.max_requests;
        let Some(process) = self.processes.get_mut(&id) else {
            return false;
        };
        process.answered += 1;
        if process.answered == 1 {
            self.restarts.useful();
        }
        let is_worn = max_requests > 0 && process.answered >= max_requests;
        process.worn |= is_worn;
        is_worn
    }

    fn detached(&mut self, now: Instant, id: ProcessId, why: Detached, actions: &mut Vec<Action>) {
        let by = now + self.rules.ready_timeout;
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let reason = match process.phase {
            Phase::Starting { .. } | Phase::Attached | Phase::Detached { .. } => match why {
                Detached::Lost => return process.enter(now, Phase::Detached { by }),
                Detached::Cancelled => Reason::Cancelled,
                Detached::Broke => Reason::Broke,
                Detached::Useless => Reason::Useless,
                Detached::Left => Reason::Spent,
            },
            // It was to go anyway, and does not come back.
            Phase::Leaving(reason) => reason,
            Phase::Stopping(_) | Phase::Exited(_) => return,
        };
        process.enter(now, Phase::Stopping(Ladder::begin(now, reason)));
        let at_once = match self.rules.dialect {
            // It cannot be told to stop in any other way. One that has answered the only request
            // it was to get is about to end by itself.
            Dialect::Jsonl => {
                why != Detached::Left || !self.rules.per_request || process.answered == 0
            }
            // The end of all calls may have overtaken what tells it to leave.
            Dialect::Grpc => reason == Reason::Leaving && why == Detached::Left,
        };
        if at_once {
            self.climb(now, id, Rung::Sigterm, actions);
        }
        if reason == Reason::Useless {
            self.was_useless(now);
        }
    }

    /// An operator starts afresh.
    fn restart(&mut self, replace: bool) {
        if self.standing == Standing::Leaving {
            return;
        }
        self.standing = Standing::Open;
        self.restarts.forget();
        self.seats_wait.clear();
        self.replacing_waits = None;
        if replace {
            for process in self.processes.values_mut() {
                process.worn |= process.serves();
            }
        }
    }
}
