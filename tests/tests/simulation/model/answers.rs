//! Every answer needs its reason, and comes in time.

use harness_server::envelope::Code;

use super::{Fault, Judged, Model, State, TICK, Trigger};

impl Model {
    /// A run is answered; none is a value.
    pub(super) fn answer(&mut self, run: usize, code: Option<Code>) {
        self.mature(run);
        let entry = &self.runs[run];
        assert_ne!(entry.state, State::Ended, "run {run} is answered twice");
        let due = entry.attempt_ends.is_some_and(|at| at <= self.now);
        let runs = matches!(entry.state, State::Running(_));
        // The answer comes before the end of the call.
        if runs && due && self.trigger == Trigger::Tick && code != Some(Code::DeadlineExceeded) {
            self.fail(run, Fault::counted(Code::AttemptTimeout), None);
        }
        match self.runs[run].state {
            State::Owed(owed) => assert_eq!(code, owed, "the outcome of run {run}"),
            state @ (State::Queued | State::Running(_) | State::BackingOff(_) | State::Away(_)) => {
                let explained = code.is_some_and(|code| self.explains(run, code));
                assert!(explained, "run {run} is {state:?} and answered {code:?}");
            }
            State::Ended => unreachable!("it was looked at above"),
        }
        let latest = self.runs[run].deadline.max(self.leapt_to) + TICK;
        assert!(self.now <= latest, "run {run} is answered too late");
        self.leave_state(run);
        self.count_waiting(run, false);
        let entry = &mut self.runs[run];
        entry.state = State::Ended;
        entry.unread.clear();
        (entry.outcome, entry.ended_at, entry.ends_before) = (code, self.now, self.ends);
        self.ends += 1;
        self.answered.push(run);
        self.totals.runs -= 1;
    }

    fn explains(&self, run: usize, code: Code) -> bool {
        let entry = &self.runs[run];
        let cancelled = self.trigger == Trigger::Cancelled(run);
        let late = self.now >= entry.deadline;
        let looks = entry.state == State::Queued && entry.settled == self.event;
        match code {
            Code::DeadlineExceeded => late && (cancelled || self.trigger == Trigger::Tick),
            Code::Cancelled => cancelled && !late,
            Code::ShuttingDown => {
                !matches!(entry.state, State::Running(_)) && self.trigger == Trigger::Leaving
            }
            Code::Busy => looks && entry.attempt == 0 && self.is_full_for(run),
            Code::UnknownAgent => {
                let connected = !self.agents[entry.agent].open.is_empty();
                // One that a worker may come back to is not forgotten.
                let kept = connected || self.agents[entry.agent].away > 0;
                looks && !kept && !entry.wait_for_agent && self.trigger == Trigger::Ask(run)
            }
            Code::CrashLoop => {
                entry.state == State::Queued && self.agents[entry.agent].is_given_up()
            }
            Code::InvalidRequest | Code::PayloadTooLarge => looks && self.nobody_takes(run, code),
            _ => false,
        }
    }

    fn is_full_for(&self, run: usize) -> bool {
        let entry = &self.runs[run];
        let agent = &self.agents[entry.agent];
        // Others that look for a slot in this event may have begun to wait before it.
        let others = self.settled.iter().map(|(other, _)| *other);
        let others = others.filter(|other| !self.runs[*other].waiting && *other != run);
        let more = others.clone().count();
        let more_bytes: u64 = others.map(|other| self.runs[other].bytes).sum();
        agent.waiting + more >= self.limits.queue_runs
            || self.totals.queued_bytes + more_bytes + entry.bytes > self.limits.queue_bytes
            || self.is_cycle(run)
            || (self.trigger == Trigger::Ask(run)
                && agent.away == 0
                && self.agents_before >= self.limits.agents)
    }

    /// Whether the runs above hold every slot of the agent this one asks.
    pub(super) fn is_cycle(&self, run: usize) -> bool {
        let agent = self.runs[run].agent;
        let mut held = 0;
        let mut above = self.runs[run].parent;
        while let Some(parent) = above {
            let entry = &self.runs[super::run_of(parent)];
            if entry.state == State::Ended {
                break;
            }
            // A worker that comes back has its slot for what it was away with.
            let works = matches!(entry.state, State::Running(_) | State::Away(_));
            held += usize::from(works && entry.agent == agent);
            above = entry.parent;
        }
        let slots = self.agents[agent].open.len() + self.agents[agent].away;
        slots > 0 && held >= slots
    }

    fn nobody_takes(&self, run: usize, code: Code) -> bool {
        let entry = &self.runs[run];
        let classes = &self.agents[entry.agent].classes;
        let mut judged_out = false;
        let refused = classes.iter().all(|(schema, most, _)| {
            if entry.frame_bytes > *most {
                return true;
            }
            let refuses = schema.is_some_and(|schema| {
                entry.is_json && entry.judged.contains(&(schema, Judged::Refuses))
            });
            judged_out |= refuses;
            refuses
        });
        refused && !classes.is_empty() && judged_out == (code == Code::InvalidRequest)
    }
}
