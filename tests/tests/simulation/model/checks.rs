//! What must be true after every event.

use harness_server::dispatch::{Census, Core, RunState};
use harness_server::ids::RunId;
use harness_server::journal::Content;

use crate::setting::AGENTS;

use super::{Judged, Model, State, Totals, Trigger, is_full};

impl Model {
    /// The event has been taken and all its actions told.
    pub(crate) fn after(&mut self, core: &Core) -> Census {
        for run in self.away.clone() {
            self.comes_due(run);
        }
        assert_eq!(self.owed, 0, "a run whose outcome is clear has none");
        assert!(
            self.expected_back.is_none(),
            "{:?} has not come",
            self.expected_back
        );
        assert_eq!(self.expected_away, None, "the log does not say it");
        self.check_away();
        assert!(
            self.expected_ack.is_none(),
            "{:?} is not acknowledged",
            self.expected_ack
        );
        assert!(!self.expected_stale, "a stale frame was taken");
        assert!(
            self.expected_released.is_none(),
            "a released was passed over"
        );
        assert!(
            self.expected_end.is_none(),
            "{:?} has not come",
            self.expected_end
        );
        if let Trigger::Cancelled(run) = self.trigger {
            assert_eq!(
                self.runs[run].state,
                State::Ended,
                "run {run} was cancelled"
            );
        }
        if self.trigger == Trigger::Tick {
            for run in self.backing_off.clone() {
                self.mature(run);
            }
        }
        self.let_wait();
        if let Some((run, seq)) = self.taken.take() {
            let view = core
                .view_run(self.now, super::run_id(run))
                .expect("it runs");
            self.runs[run].unread.push((view.head, seq));
        }
        for run in std::mem::take(&mut self.answered) {
            self.check_journal(core, run);
        }
        let census = core.census();
        self.compare(&census);
        let next = core.next_wake();
        if self.trigger == Trigger::Tick {
            assert!(next.is_none_or(|at| at > self.now), "something due is left");
        }
        let close = self.totals.slots + self.totals.runs < 100 || self.event.is_multiple_of(256);
        if close {
            self.check_closely(core);
        }
        census
    }

    /// Counts the runs that looked for a slot and now wait for one.
    fn let_wait(&mut self) {
        let mut settled = std::mem::take(&mut self.settled);
        // Those that come back are let in beyond the limit, so they are counted last.
        settled.sort_unstable_by_key(|(run, _)| self.runs[*run].attempt > 0);
        for (run, awaits) in settled {
            let entry = &self.runs[run];
            if entry.state != State::Queued || entry.waiting || awaits {
                continue;
            }
            let agent = &self.agents[entry.agent];
            if entry.attempt == 0 {
                assert!(agent.waiting < self.limits.queue_runs, "the queue is full");
                let bytes = self.totals.queued_bytes + entry.bytes;
                assert!(bytes <= self.limits.queue_bytes, "the queues hold too much");
                assert!(!self.is_cycle(run), "run {run} waits for what waits for it");
            }
            self.count_waiting(run, true);
        }
    }

    /// Whether a schema that is connected has yet to say whether it takes a run.
    pub(super) fn awaits(&self, run: usize) -> bool {
        let entry = &self.runs[run];
        let classes = &self.agents[entry.agent].classes;
        classes.iter().any(|(schema, most, _)| {
            let judged = |schema| entry.judged.iter().find(|(known, _)| *known == schema);
            entry.frame_bytes <= *most
                && entry.is_json
                && schema.is_some_and(|schema| {
                    judged(schema).is_none_or(|(_, judged)| *judged == Judged::Awaited)
                })
        })
    }

    /// That the journal of a run that has ended tells what happened, in order.
    fn check_journal(&self, core: &Core, run: usize) {
        let Some(reading) = core.read_journal(super::run_id(run), 1, usize::MAX) else {
            return;
        };
        assert!(reading.ended);
        let (mut seq, mut attempt, mut ended, mut running) = (0, 0, 0, false);
        for entry in &reading.page.entries {
            assert!(
                entry.seq > seq && entry.seq <= reading.page.head,
                "numbers only grow"
            );
            seq = entry.seq;
            match &entry.content {
                Content::RunStarted => assert_eq!(seq, 1, "it is started first"),
                Content::AttemptStarted(_) => {
                    attempt += 1;
                    assert_eq!(entry.attempt.0, attempt, "attempts only grow");
                    assert!(!running && ended == 0, "one attempt after the other");
                    running = true;
                }
                Content::AttemptEnded(_) => {
                    assert!(running, "an attempt ends once");
                    running = false;
                }
                Content::RunEnded(_) => ended += 1,
                Content::Worker(_) => {
                    assert_eq!(entry.attempt.0, attempt, "an entry of another attempt");
                    assert!(running, "an entry of an attempt that is over");
                }
                Content::CancelRequested { .. }
                | Content::AttemptStopping(_)
                | Content::AttemptStopped { .. } => {}
            }
        }
        assert_eq!(
            (attempt, ended),
            (self.runs[run].attempt, 1),
            "the journal of run {run}"
        );
        assert!(!running, "an attempt of run {run} outlived it");
    }

    fn compare(&self, census: &Census) {
        let theirs = Totals {
            slots: census.slots,
            ready: census.ready,
            runs: census.runs,
            queued: census.queued,
            waiting: census.waiting,
            queued_bytes: census.queued_bytes,
            workers: census.workers,
            unreleased: census.unreleased,
        };
        assert_eq!(theirs, self.totals, "Core's counts, then the model's");
        // The configuration names those of pools, and a peer cannot.
        let pools = self.agents.iter().filter(|agent| agent.had_pool);
        let most = self.limits.agents + pools.count();
        assert!(
            census.agents <= most,
            "{} agents, {most} may be: {}",
            census.agents,
            self.limits.agents
        );
        assert!(
            census.unreleased <= self.limits.unreleased,
            "too much is remembered"
        );
        // Some are looked at for each that ends, and those that are or were watched stay for longer.
        let kept = self.limits.ended_runs.max(1) + 2 * self.watched_most;
        assert!(
            census.ended <= kept,
            "{} ended runs are kept, {kept} may be",
            census.ended
        );
        let history = usize::from(census.ended > 0);
        let most = 2 * census.runs
            + self.away.len()
            + census.slots
            + census.unreleased
            + census.agents
            + history;
        assert!(census.timers <= most, "a timer belongs to nothing");
        assert!(
            census.timers >= census.runs + self.away.len() + census.unreleased,
            "a timer is missing"
        );
    }

    fn check_closely(&self, core: &Core) {
        let rules = self.limits.slot;
        let ticked = self.trigger == Trigger::Tick;
        let (mut ready, mut busy, mut other) = (0, 0, 0);
        for agent in &self.agents {
            for id in &agent.open {
                let slot = &self.slots[*id];
                if slot.stopping.is_some() {
                    other += 1;
                } else if slot.held.is_some() {
                    busy += 1;
                } else {
                    ready += 1;
                }
                if let Some(held) = &slot.held {
                    let runs = self.runs[super::run_of(held.delivery)].state;
                    assert_eq!(
                        runs,
                        State::Running(*id),
                        "slot {id} holds what is elsewhere"
                    );
                    let owes = is_full(&slot.offer) && !held.accepted && held.accept_by <= self.now;
                    assert!(!(ticked && owes), "slot {id} has not accepted in time");
                }
                let must_know = is_full(&slot.offer) || slot.held.is_none();
                let knows = !self.drained[slot.worker] || slot.told || !must_know;
                assert!(knows, "slot {id} is not told to drain");
                let heard = slot.heard + 3 * rules.heartbeat_interval;
                let silent = is_full(&slot.offer) && heard <= self.now;
                assert!(!(ticked && silent), "slot {id} is silent for too long");
                assert!(
                    !self.leaving || slot.held.is_some(),
                    "an idle slot outlived us"
                );
                for run in agent.queued.iter().filter(|_| slot.free.is_some()) {
                    assert!(
                        !self.may_take(*id, *run),
                        "slot {id} is free and run {run} waits"
                    );
                }
            }
            for run in &agent.queued {
                let entry = &self.runs[*run];
                assert!(!(ticked && entry.deadline <= self.now), "run {run} is late");
                assert!(!self.leaving, "run {run} waits for a harness that leaves");
                let in_vain = entry.waiting && agent.is_given_up();
                assert!(!in_vain, "run {run} waits for a pool that has given up");
            }
        }
        let views = core.view_agents("default");
        for run in &self.away {
            let name = AGENTS[self.runs[*run].agent];
            let is_kept = views.iter().any(|view| *view.name == *name);
            assert!(
                is_kept,
                "agent {name} is forgotten, whose run {run} is away"
            );
            let view = core.view_run(self.now, super::run_id(*run));
            let is_running = view.is_some_and(|view| view.state == RunState::Running);
            assert!(is_running, "run {run} is away and does not run");
        }
        let sum = |of: fn(&harness_server::dispatch::AgentView) -> u32| -> u32 {
            views.iter().map(of).sum()
        };
        assert_eq!(sum(|view| view.slots_ready), ready, "free capacity");
        assert_eq!(sum(|view| view.slots_busy), busy, "busy capacity");
        assert_eq!(sum(|view| view.slots_other), other, "slots that stop");
    }

    /// Whether everything is over.
    pub(crate) fn check_nothing_is_left(&self, core: &Core) {
        assert_eq!(self.totals, Totals::default(), "something is left");
        let census = core.census();
        assert_eq!(
            (census.agents, census.timers),
            (0, 0),
            "something is left: {census:?}"
        );
        assert!(core.is_idle());
        let unanswered = self.runs.iter().position(|run| run.state != State::Ended);
        assert_eq!(
            unanswered.map(super::run_id),
            None::<RunId>,
            "an answer is missing"
        );
    }
}
