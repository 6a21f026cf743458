//! What must be true of Core after every event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::super::agents::class_of;
use super::super::timers::Timer;
use super::{Core, Delivery};
use crate::ids::{AgentKey, SlotId};
use crate::{run, slot};

/// Panics with the invariant that does not hold.
pub(super) fn check(core: &Core, now: Instant) {
    check_runs(core);
    check_slots(core);
    check_agents(core);
    check_workers(core);
    check_timers(core);
    check_nothing_waits_in_vain(core, now);
    if core.leaving {
        let idle = |entry: &super::super::SlotEntry| entry.slot.delivery().is_none();
        assert!(
            !core.slots.values().any(|entry| idle(entry)),
            "an idle slot outlived us"
        );
    }
}

fn check_runs(core: &Core) {
    let mut queued = 0;
    let mut backing_off: BTreeMap<&AgentKey, usize> = BTreeMap::new();
    let mut bytes = 0;
    for (id, entry) in &core.runs {
        let agent = core.agents.get(&entry.request.agent);
        let in_queue = agent.is_some_and(|agent| agent.queue.get(&entry.order) == Some(id));
        match entry.run.state() {
            run::State::Queued if entry.is_backing_off() => {
                *backing_off.entry(&entry.request.agent).or_default() += 1;
                assert!(!in_queue, "run {id} backs off and is in a queue");
                assert!(entry.waiting, "run {id} backs off uncounted");
                assert!(
                    !core.leaving,
                    "run {id} backs off for a harness that leaves"
                );
            }
            run::State::Queued => {
                queued += 1;
                assert!(entry.timer.is_none(), "run {id} waits with a timer");
                assert!(in_queue, "run {id} waits in no queue");
                assert!(
                    entry.waiting || entry.is_being_judged(),
                    "run {id} waits uncounted"
                );
                assert!(!core.leaving, "run {id} waits for a harness that leaves");
            }
            run::State::Running(slot) => {
                let delivery = Delivery {
                    run: *id,
                    attempt: entry.run.attempt(),
                };
                let held = core.slots.get(slot).and_then(|held| held.slot.delivery());
                assert_eq!(held, Some(delivery), "run {id} is not where it runs");
                assert!(!in_queue && !entry.waiting, "run {id} runs and waits");
                assert!(!entry.is_backing_off(), "run {id} runs and backs off");
            }
            run::State::Ended => panic!("run {id} has ended and is still here"),
        }
        if entry.waiting {
            bytes += entry.request.payload.data.len() as u64;
        }
    }
    assert_eq!(core.queued_bytes, bytes, "bytes of waiting runs");
    for (key, agent) in &core.agents {
        let in_queue = agent.queue.values().filter(|run| core.runs[run].waiting);
        let backing_off = backing_off.remove(key).unwrap_or_default();
        let waiting: usize = in_queue.count() + backing_off;
        assert_eq!(agent.waiting, waiting, "waiting runs of {key}");
    }
    assert!(backing_off.is_empty(), "{backing_off:?} are forgotten");
    let in_queues: usize = core.agents.values().map(|agent| agent.queue.len()).sum();
    assert_eq!(in_queues, queued, "a queue holds a run that does not wait");
}

fn check_slots(core: &Core) {
    for (id, entry) in &core.slots {
        if let Some(held) = entry.slot.delivery() {
            let state = core.runs.get(&held.run).map(|run| run.run.state());
            assert!(
                matches!(state, Some(run::State::Running(slot)) if slot == id),
                "slot {id} holds {held}, which is {state:?}"
            );
        }
        let ready = entry
            .ready
            .and_then(|order| core.agents.get(&entry.offer.agent)?.ready.get(&order));
        if matches!(entry.slot.state(), slot::State::Ready) {
            assert_eq!(ready, Some(id), "a READY slot is not listed");
        } else {
            assert_eq!(entry.ready, None, "slot {id} is listed and not READY");
        }
        let wake = entry.slot.next_wake(&core.limits.slot);
        assert!(
            wake.is_none_or(|wake| entry.timer.is_some_and(|at| at <= wake)),
            "slot {id} sleeps past its next rule"
        );
        let worker = core.workers.get(&entry.offer.worker);
        assert!(
            worker.is_some_and(|worker| worker.slots.contains(id)),
            "slot {id} has no worker"
        );
    }
}

fn check_agents(core: &Core) {
    for (key, agent) in &core.agents {
        let mut classes = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for (id, entry) in core.slots.iter().filter(|(_, e)| e.offer.agent == *key) {
            *classes.entry(class_of(&entry.offer)).or_default() += 1;
            ready.extend(entry.ready.map(|order| (order, *id)));
        }
        assert_eq!(agent.classes, classes, "classes of {key}");
        let listed: BTreeSet<(u64, SlotId)> = agent.ready.clone().into_iter().collect();
        assert_eq!(listed, ready, "free slots of {key}");
        let goes = agent.offered && classes.is_empty();
        assert_eq!(agent.kept_until.is_some(), goes, "how long {key} is kept");
        assert!(
            agent.is_known() || agent.is_waited_for(),
            "nobody waits for {key}"
        );
    }
    assert!(core.agents.len() <= core.limits.agents);
}

fn check_workers(core: &Core) {
    let mut unreleased = 0;
    for (id, worker) in &core.workers {
        unreleased += worker.unreleased.len();
        assert!(
            !worker.slots.is_empty() || !worker.unreleased.is_empty(),
            "worker {id} is remembered for nothing"
        );
        for slot in &worker.slots {
            assert!(core.slots.contains_key(slot), "worker {id} has lost {slot}");
        }
        assert!(worker.slots.len() <= core.limits.worker_slots);
    }
    assert_eq!(core.unreleased, unreleased, "count of unreleased work");
    assert!(unreleased <= core.limits.unreleased);
}

/// Every timer belongs to something that is there, and everything that needs one has it.
fn check_timers(core: &Core) {
    let mut timers = BTreeSet::new();
    for (id, entry) in &core.runs {
        timers.insert((entry.run.deadline(), Timer::Run(*id)));
        timers.extend(entry.timer.clone());
    }
    for (id, entry) in &core.slots {
        timers.extend(entry.timer.map(|at| (at, Timer::Slot(*id))));
    }
    for (id, worker) in &core.workers {
        for held in &worker.unreleased {
            let at = held.since + core.limits.release_timeout;
            timers.insert((at, Timer::Release(*id, held.delivery)));
        }
    }
    for (key, agent) in &core.agents {
        timers.extend(agent.kept_until.map(|at| (at, Timer::Agent(key.clone()))));
    }
    timers.extend(core.history.wake.map(|at| (at, Timer::History)));
    assert_eq!(core.timers.set, timers, "timers");
    let stays = core.history.wake.is_some() || core.history.all_are_read();
    assert!(stays, "ended runs are never forgotten");
}

/// No slot is free while a run waits that it could take.
fn check_nothing_waits_in_vain(core: &Core, now: Instant) {
    for (key, agent) in &core.agents {
        for slot in agent.ready.values() {
            for run in agent.queue.values() {
                let waits = core.may_take(now, *slot, &core.runs[run]);
                assert!(!waits, "slot {slot} is free and run {run} of {key} waits");
            }
        }
    }
}
