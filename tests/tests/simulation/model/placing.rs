//! Which slot a run may go to, and that the right one goes first.

use std::time::Instant;

use harness_server::dispatch::Offer;
use harness_server::ids::{Delivery, Lease};

use super::{Hand, Held, Judged, Model, State, Trigger, is_full, run_of};

impl Model {
    /// A run looks for a slot, or may wait for one.
    pub(super) fn settle(&mut self, run: usize) {
        if self.runs[run].settled != self.event {
            self.runs[run].settled = self.event;
            self.settled.push((run, self.awaits(run)));
        }
    }

    /// What time has done to a run: a back-off that is over puts it into the queue.
    pub(super) fn mature(&mut self, run: usize) {
        self.comes_due(run);
        if let State::BackingOff(until) = self.runs[run].state
            && until <= self.now
            && self.trigger == Trigger::Tick
        {
            self.leave_state(run);
            self.enter_queue(run);
        }
    }

    pub(super) fn deliver(&mut self, id: usize, delivery: Delivery, lease: Lease, until: Instant) {
        let run = run_of(delivery);
        self.mature(run);
        let entry = &self.runs[run];
        let slot = &self.slots[id];
        assert_eq!(
            entry.state,
            State::Queued,
            "{delivery} is not to be delivered"
        );
        assert!(slot.open, "{delivery} goes to slot {id}, which is not open");
        assert!(
            slot.stopping.is_none(),
            "{delivery} goes to slot {id}, which stops"
        );
        assert!(
            slot.held.is_none(),
            "slot {id} gets {delivery} and holds another"
        );
        assert!(!self.leaving, "{delivery} starts in a harness that leaves");
        assert!(self.now < entry.deadline, "{delivery} has no time left");
        assert_eq!(slot.agent, entry.agent, "{delivery} is for another agent");
        assert_eq!(
            delivery.attempt.0,
            entry.attempt + 1,
            "attempts grow by one"
        );
        assert!(self.may_take(id, run), "slot {id} does not take {delivery}");
        let number = u128::from_be_bytes(lease.0);
        assert!(
            number > self.last_lease,
            "{delivery} has a lease of another"
        );
        self.last_lease = number;
        self.check_turn(id, run);

        self.leave_state(run);
        self.count_waiting(run, false);
        self.no_longer_free(id);
        let entry = &mut self.runs[run];
        entry.state = State::Running(id);
        entry.attempt = delivery.attempt.0;
        (entry.taken, entry.replied) = (0, 0);
        entry.hands.push(Hand {
            worker: self.slots[id].worker,
            lease,
            full: is_full(&self.slots[id].offer),
        });
        let ends = entry
            .policy
            .attempt_timeout
            .map(|timeout| self.now + timeout);
        entry.attempt_ends = ends.filter(|ends| *ends < entry.deadline);
        let latest = entry.attempt_ends.unwrap_or(entry.deadline);
        assert_eq!(until, latest, "the time {delivery} is given");
        let mib = entry.frame_bytes as f64 / f64::from(1 << 20);
        let accept_by =
            self.now + self.limits.accept_timeout + self.limits.accept_timeout_per_mib.mul_f64(mib);
        self.slots[id].held = Some(Held::new(delivery, lease, accept_by));
    }

    /// That no run was overtaken and no slot was passed over.
    fn check_turn(&self, id: usize, run: usize) {
        // What versions that were away said of a run may have been dropped.
        let sure = self.runs[run].judged.len() < self.limits.agent_classes;
        if !self.looks_close(id) || self.runs[run].avoid.is_some() || !sure {
            return;
        }
        let agent = &self.agents[self.runs[run].agent];
        let entry = &self.runs[run];
        for other in &agent.queued {
            let waits = &self.runs[*other];
            let before = waits.key < entry.key && waits.settled != self.event;
            let overtaken = before && waits.avoid.is_none() && self.may_take(id, *other);
            assert!(!overtaken, "run {run} overtakes run {other} to slot {id}");
        }
        for other in &agent.open {
            let passed_over = self.slots[*other].free < self.slots[id].free
                && self.slots[*other].free.is_some()
                && self.may_take(*other, run);
            assert!(
                !passed_over,
                "run {run} goes to slot {id}, slot {other} is free longer"
            );
        }
    }

    /// Whether the lists around a slot are short enough to be looked through at every event.
    pub(super) fn looks_close(&self, id: usize) -> bool {
        let agent = &self.agents[self.slots[id].agent];
        agent.open.len() * (agent.queued.len() + 1) < 500 || self.event.is_multiple_of(256)
    }

    /// Whether a free slot may be given a run.
    pub(super) fn may_take(&self, id: usize, run: usize) -> bool {
        let slot = &self.slots[id];
        let entry = &self.runs[run];
        self.now < entry.deadline
            && self.judgement(run, &slot.offer) == Judged::Takes
            && selects(run, self, &slot.offer)
            && (entry.avoid != Some(slot.worker) || !self.another_worker(slot.worker, run))
    }

    fn another_worker(&self, worker: usize, run: usize) -> bool {
        self.agents[self.runs[run].agent].open.iter().any(|id| {
            let slot = &self.slots[*id];
            slot.worker != worker
                && slot.stopping.is_none()
                && self.judgement(run, &slot.offer) != Judged::Refuses
                && selects(run, self, &slot.offer)
        })
    }

    /// What the schema and the size of a slot say of a run.
    pub(super) fn judgement(&self, run: usize, offer: &Offer) -> Judged {
        let entry = &self.runs[run];
        if entry.frame_bytes > offer.max_receive_bytes {
            return Judged::Refuses;
        }
        match offer.request_schema {
            Some(schema) if entry.is_json => entry
                .judged
                .iter()
                .find(|(known, _)| *known == schema)
                .map_or(Judged::Awaited, |(_, judged)| *judged),
            Some(_) | None => Judged::Takes,
        }
    }
}

fn selects(run: usize, model: &Model, offer: &Offer) -> bool {
    let mut pairs = model.runs[run].selector.iter();
    pairs.all(|(key, value)| offer.labels.get(key) == Some(value))
}
