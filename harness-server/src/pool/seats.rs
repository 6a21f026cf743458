//! Which seats are empty, too many or taken by a process that is to be replaced, and what is done
//! about it after every event.

use std::time::Instant;

use crate::ids::ProcessId;

use super::process::{Phase, Process, Reason};
use super::{Action, Pool, Standing};

impl Pool {
    /// Brings the pool nearer to what its rules want.
    pub(super) fn settle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match self.standing {
            Standing::Open => {
                self.shrink(now, actions);
                self.fill(now, actions);
                self.replace(now, actions);
            }
            Standing::CrashLooping(_) => self.shrink(now, actions),
            Standing::Leaving => {
                let all: Vec<ProcessId> = self.processes.keys().copied().collect();
                for id in all {
                    self.retire(now, id, Reason::Leaving, actions);
                }
            }
        }
    }

    /// A replacement of a process that is gone or going takes its seat as any other.
    fn drop_vain_replacements(&mut self) {
        let serving: Vec<ProcessId> = self.serving().map(|process| process.id).collect();
        for process in self.processes.values_mut() {
            process.replaces = process.replaces.filter(|old| serving.contains(old));
        }
    }

    /// Lets the newest go where there are more than seats, those not ready first.
    fn shrink(&mut self, now: Instant, actions: &mut Vec<Action>) {
        loop {
            self.drop_vain_replacements();
            let serving = || self.serving().filter(|process| process.occupies());
            if serving().count() <= self.rules.size {
                return;
            }
            let least = serving().max_by_key(|process| (!process.is_attached(), process.id));
            if let Some(id) = least.map(|process| process.id) {
                self.retire(now, id, Reason::Resized, actions);
            }
        }
    }

    /// Starts processes for the seats that are empty and need not wait.
    fn fill(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.seats_wait.retain(|at| *at > now);
        let size = self.rules.size;
        let taken = self.processes.values().filter(|p| p.occupies());
        let (serving, ending): (Vec<&Process>, Vec<&Process>) = taken.partition(|p| p.serves());
        // A seat may wait while what was in it is still being reaped.
        let vacant = size.saturating_sub(serving.len());
        let empty = vacant.saturating_sub(ending.len());
        // The longest waits are those of seats that are no more.
        self.seats_wait.truncate(vacant);
        for _ in 0..empty.min(vacant - self.seats_wait.len()) {
            self.start(now, None, actions);
        }
    }

    /// Starts the replacement of a worn process, one at a time.
    fn replace(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.replacing_waits.is_some_and(|until| now < until) {
            return;
        }
        self.replacing_waits = None;
        if let Some(worn) = self.next_worn() {
            self.start(now, Some(worn), actions);
        }
    }

    /// The oldest process that is to be replaced next; none while another is being replaced.
    fn next_worn(&self) -> Option<ProcessId> {
        let under_way = |process: &Process| process.replaces.is_some();
        if self.processes.values().any(under_way) {
            return None;
        }
        let mut serving = self.serving();
        serving
            .find(|process| process.worn)
            .map(|process| process.id)
    }

    fn start(&mut self, now: Instant, replaces: Option<ProcessId>, actions: &mut Vec<Action>) {
        let id = ProcessId(self.next_id);
        self.next_id += 1;
        let mut process = Process::new(id, now, now + self.rules.ready_timeout);
        process.replaces = replaces;
        self.processes.insert(id, process);
        let taken = self.processes.values().filter(|p| p.occupies()).count();
        self.totals.started(taken);
        actions.push(Action::Start(id));
    }

    pub(super) fn serving(&self) -> impl Iterator<Item = &Process> {
        self.processes.values().filter(|process| process.serves())
    }

    /// When `Tick` is due next.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let open = self.standing == Standing::Open;
        let seats = self.seats_wait.first().copied().filter(|_| open);
        let replacing = self
            .replacing_waits
            .filter(|_| open && self.next_worn().is_some());
        let processes = self
            .processes
            .values()
            .flat_map(|process| self.wakes(process));
        [seats, replacing]
            .into_iter()
            .flatten()
            .chain(processes)
            .min()
    }

    fn wakes(&self, process: &Process) -> impl Iterator<Item = Instant> + use<> {
        let restart = self.rules.restart;
        let max_age = self.rules.max_age;
        let phase = match process.phase {
            Phase::Starting { by } | Phase::Detached { by } => Some(by),
            Phase::Stopping(ladder) => ladder.next(&self.rules.stop).map(|(due, _)| due),
            Phase::Attached | Phase::Leaving(_) | Phase::Exited(_) => None,
        };
        let ready_at = process.ready_at.filter(|_| process.serves());
        let proved = ready_at
            .filter(|_| !process.proved)
            .map(|at| at + restart.min_uptime);
        let aged = ready_at
            .filter(|_| !process.worn && !max_age.is_zero())
            .map(|at| at + max_age);
        [phase, proved, aged].into_iter().flatten()
    }
}
