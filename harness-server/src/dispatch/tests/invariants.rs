//! What must be true of Core after every event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::super::agents::class_of;
use super::super::durable::{Held, Phase};
use super::super::timers::Timer;
use super::{Core, Delivery};
use crate::ids::{AgentKey, RunId, SlotId};
use crate::store::Holder;
use crate::{run, slot};

/// Panics with the invariant that does not hold.
pub(super) fn check(core: &Core, now: Instant) {
    check_runs(core);
    check_claims(core);
    check_slots(core);
    check_agents(core);
    check_workers(core);
    check_timers(core);
    check_nothing_waits_in_vain(core, now);
    if core.leaving {
        let idle = |entry: &super::super::SlotEntry| {
            entry.slot.delivery().is_none() && entry.owes.is_none()
        };
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
        if entry.durable.is_some() {
            check_durable(core, *id);
            continue;
        }
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
            run::State::Away => {
                assert!(!in_queue && !entry.waiting, "run {id} is away and waits");
                assert!(!core.leaving, "run {id} is away from a harness that leaves");
            }
            run::State::Ended => panic!("run {id} has ended and is still here"),
        }
        if entry.waiting || matches!(entry.run.state(), run::State::Away) {
            bytes += entry.request.payload.data.len() as u64;
        }
    }
    let durable = core.runs.values().filter(|run| run.durable.is_some());
    assert_eq!(core.durable_runs, durable.count(), "durable runs");
    let reads = |run: &Held| *run == Held::Read;
    let held = core
        .runs
        .values()
        .filter_map(|run| Some(run.durable.as_ref()?.request));
    assert_eq!(core.read_ahead, held.filter(reads).count(), "what was read");
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

/// A worker is waited for if its run is away, and only one that may come back.
fn check_claims(core: &Core) {
    let waits = !core.limits.interactive_reattach_window.is_zero();
    let mut away = 0;
    for (id, entry) in &core.runs {
        let claim = entry.claim.as_ref();
        let awaited = claim.is_some_and(|claim| claim.away.is_some());
        let is_away = matches!(entry.run.state(), run::State::Away);
        assert_eq!(awaited, is_away, "run {id}: {claim:?}");
        away += usize::from(is_away && entry.durable.is_none());
        let run::State::Running(slot) = entry.run.state() else {
            continue;
        };
        let Some(held) = core.slots.get(slot).filter(|it| it.kept_for.is_none()) else {
            continue;
        };
        let is_someones =
            entry.durable.is_some() || (waits && held.slot.level() == slot::Level::Full);
        assert_eq!(claim.is_some(), is_someones, "run {id} is someone's");
        if let Some(claim) = claim {
            let Holder { worker, lease } = claim.holder;
            assert_eq!(worker, held.offer.worker, "whose run {id} is");
            let is_its = held.lease.is_none_or(|it| it == lease);
            assert!(is_its, "whose run {id} is");
            assert_eq!(
                Some(claim.taken),
                held.slot.last_seq(),
                "what is taken of run {id}"
            );
            assert_eq!(claim.reply_seq, 0, "run {id} has no reply yet");
        }
    }
    assert_eq!(core.away, away, "interactive runs that are away");
}

/// A durable run stands in one place, and says the same of it everywhere.
fn check_durable(core: &Core, id: RunId) {
    let entry = &core.runs[&id];
    let durable = entry.durable.as_ref().expect("a durable run");
    let agent = core.agents.get(&entry.request.agent);
    let stands = agent.and_then(|agent| agent.durable.get(&entry.selector, entry.order));
    let in_queue = stands.is_some();
    let on_disk = durable.request == Held::OnDisk;
    assert!(
        stands.is_none_or(|stands| stands == (id, on_disk)),
        "run {id}"
    );
    let kept = durable.kept_slot();
    match &durable.phase {
        Phase::New(_) | Phase::Waiting => {
            assert!(matches!(entry.run.state(), run::State::Queued), "{entry:?}");
            let waits = in_queue != entry.is_backing_off();
            assert!(waits || core.leaving, "run {id} waits in one place");
        }
        Phase::Loading(_) => assert!(matches!(entry.run.state(), run::State::Queued)),
        Phase::Starting(slot) => {
            assert!(matches!(entry.run.state(), run::State::Running(held) if held == slot));
        }
        Phase::Working => {
            if let run::State::Running(slot) = entry.run.state() {
                let held = core.slots.get(slot).and_then(|held| held.slot.delivery());
                assert_eq!(
                    held,
                    Some(entry.run.delivery()),
                    "run {id} is where it runs"
                );
            }
        }
        Phase::Ending => assert!(matches!(entry.run.state(), run::State::Ended)),
    }
    assert!(!in_queue || kept.is_none(), "run {id} waits and has a slot");
    assert_eq!(
        entry.request.payload.data.is_empty(),
        durable.request == Held::OnDisk
    );
    let taken = entry.claim.as_ref().map_or(0, |claim| claim.taken);
    assert!(durable.written <= taken, "run {id}: {durable:?}");
}

fn check_slots(core: &Core) {
    for (id, entry) in &core.slots {
        if let Some(held) = entry.slot.delivery() {
            let state = core.runs.get(&held.run).map(|run| run.run.state());
            assert!(
                matches!(state, Some(run::State::Running(slot)) if slot == id)
                    || is_ending(core, held),
                "slot {id} holds {held}, which is {state:?}"
            );
        }
        let ready = entry
            .ready
            .and_then(|order| core.agents.get(&entry.offer.agent)?.ready.get(&order));
        if core.leaving && entry.owes.is_some() {
            assert_eq!(entry.ready, None, "slot {id} owes and we leave");
        } else if let Some(run) = entry.kept_for {
            assert_eq!(entry.ready, None, "slot {id} is kept for run {run}");
        } else if matches!(entry.slot.state(), slot::State::Ready) {
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
        let away = core.runs.values().filter(|run| {
            let is_away = matches!(run.run.state(), run::State::Away);
            is_away && run.request.agent == *key
        });
        assert_eq!(agent.away, away.count(), "runs of {key} that are away");
        let goes = agent.offered && classes.is_empty();
        assert_eq!(agent.kept_until.is_some(), goes, "how long {key} is kept");
        assert!(
            agent.is_known() || agent.is_waited_for(),
            "nobody waits for {key}"
        );
    }
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
        let durable = entry.durable.as_ref();
        let ends = durable.is_some_and(|durable| matches!(durable.phase, Phase::Ending));
        timers.extend((!ends).then(|| (entry.run.deadline(), Timer::Run(*id))));
        timers.extend(entry.timer.clone());
        let away = entry.claim.as_ref().and_then(|claim| claim.away.as_ref());
        timers.extend(away.map(|away| (away.until, Timer::Reattach(*id))));
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
    timers.extend(core.store_wake.map(|at| (at, Timer::Store)));
    timers.extend(core.history.wake.map(|at| (at, Timer::History)));
    assert_eq!(core.timers.set, timers, "timers");
    let stays = core.history.wake.is_some() || core.history.all_are_read();
    assert!(stays, "ended runs are never forgotten");
}

/// A run that was cancelled is in its slot until that is on disk.
fn is_ending(core: &Core, held: Delivery) -> bool {
    let durable = core
        .runs
        .get(&held.run)
        .and_then(|run| run.durable.as_ref());
    durable.is_some_and(|durable| matches!(durable.phase, Phase::Ending))
}

/// No slot is free while a run waits that it could take.
fn check_nothing_waits_in_vain(core: &Core, now: Instant) {
    for (key, agent) in &core.agents {
        for slot in agent.ready.values() {
            for run in agent.queue.values().chain(agent.durable.runs()) {
                let waits = core.may_take(now, *slot, &core.runs[run]);
                assert!(!waits, "slot {slot} is free and run {run} of {key} waits");
            }
        }
    }
}
