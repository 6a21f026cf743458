//! What must be true after every event, and at the end.

use harness_server::dispatch::Core;
use harness_server::ids::RunId;

use super::account::{Account, LATE, Run, Slot, Stand, Trigger};
use super::disk::Disk;
use crate::model::slot_id;

impl Account {
    /// The event has been taken and all its actions told.
    pub(super) fn after(&mut self, core: &Core, disk: &Disk) {
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.open) {
            let holds = core.is_busy(slot_id(at));
            assert_eq!(
                slot.held.is_some(),
                holds,
                "whether slot {at} holds a request"
            );
        }
        for (id, run) in &self.runs {
            self.check_run(core, disk, *id, run);
        }
        for (id, row) in &disk.rows {
            let kept = row.state.is_ended()
                || core.has_durable(*id)
                || self.outside.contains(id)
                || self.leaving;
            assert!(kept, "run {id} is on disk and forgotten");
        }
        let quiet = disk.is_quiet() && self.loading.is_empty() && self.outside.is_empty();
        if quiet && !self.leaving && self.pause_until <= self.now {
            self.check_nobody_waits_in_vain();
        }
    }

    fn check_run(&self, core: &Core, disk: &Disk, id: RunId, run: &Run) {
        let here = core.has_durable(id);
        let stand = run.stand;
        match stand {
            Stand::Gone => assert!(!here, "run {id} is kept and is not of this harness"),
            Stand::Works(slot) => {
                let held = self.slots[slot].held.map(|held| held.delivery);
                let works = held.is_some_and(|it| (it.run, it.attempt) == (id, run.attempt));
                // Its reply, or what ends it, comes with the event that takes the request away.
                assert!(works, "run {id} works in slot {slot}, which holds {held:?}");
            }
            Stand::New
            | Stand::Waits(_)
            | Stand::Starting
            | Stand::Away { .. }
            | Stand::Decided => {}
        }
        let may_go = self.leaving || self.outside.contains(&id);
        let gone = matches!(stand, Stand::Gone) || may_go;
        assert!(here || gone, "run {id} is {stand:?} and not there");
        if stand == Stand::Starting && self.trigger == Trigger::Stored(id, true) {
            let pending = disk.line.iter().any(|line| line.is_of(id));
            let told = disk.told.iter().any(|(run, _)| *run == id);
            assert!(
                pending || told,
                "run {id} is on disk and its request does not leave"
            );
        }
        if self.trigger == Trigger::Tick && here {
            let late = run.terms.deadline <= self.now;
            let over = matches!(stand, Stand::Decided | Stand::Gone);
            assert!(!late || over, "run {id} is late and {stand:?}");
            let attempt = run.attempt_ends.is_some_and(|at| at <= self.now);
            let works = matches!(stand, Stand::Works(_) | Stand::Away { .. });
            assert!(!(attempt && works), "an attempt of run {id} is late");
        }
    }

    /// That no slot is free while a run waits that it takes.
    fn check_nobody_waits_in_vain(&self) {
        let starting = self.runs.values().any(|run| run.stand == Stand::Starting);
        let judged = self
            .slots
            .iter()
            .any(|it| it.open && it.offer.request_schema.is_some());
        if starting || judged {
            return;
        }
        for (at, slot) in self.slots.iter().enumerate() {
            let free = slot.open && !slot.stopping && slot.held.is_none() && slot.owes.is_none();
            for (id, run) in self.runs.iter().filter(|_| free) {
                assert!(
                    !self.takes(slot, run),
                    "slot {at} is free and run {id} waits"
                );
            }
        }
    }

    fn takes(&self, slot: &Slot, run: &Run) -> bool {
        let offer = &slot.offer;
        let due = match run.stand {
            Stand::Waits(until) => until.is_none_or(|at| at + LATE < self.now),
            _ => false,
        };
        let mut pairs = run.placing.selector.iter();
        due && !run.avoids
            && !run.has_steps
            && run.terms.deadline > self.now
            && run.request.agent == offer.agent
            && run.request.frame_bytes() <= offer.max_receive_bytes
            && pairs.all(|(key, value)| offer.labels.get(key) == Some(value))
    }

    /// Whether everything is over, in the harness and on disk.
    pub(super) fn check_nothing_is_left(&self, core: &Core, disk: &Disk) {
        for (id, row) in &disk.rows {
            assert!(row.state.is_ended(), "run {id} is {:?} for ever", row.state);
            assert!(row.outcome().is_some(), "run {id} has no outcome");
        }
        for (id, run) in &self.runs {
            assert!(
                run.told.is_some() || run.unheard,
                "StartRun of {id} is not answered"
            );
            assert_eq!(run.cancels, 0, "CancelRun of {id} is not answered");
            if let Some(Ok(known)) = run.told {
                assert!(disk.rows.contains_key(&known), "run {known} is lost");
            }
        }
        let open = self.asks.iter().find(|(_, ask)| !ask.answered);
        assert_eq!(open.map(|(id, _)| *id), None, "an answer is missing");
        let census = core.census();
        let left = (census.slots, census.runs, census.agents, census.timers);
        assert_eq!(left, (0, 0, 0, 0), "something is left: {census:?}");
        assert_eq!(census.unreleased, 0, "work is not released: {census:?}");
        assert!(
            disk.is_quiet() && self.outside.is_empty(),
            "something is on its way"
        );
    }
}
