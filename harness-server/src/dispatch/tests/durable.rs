//! Durable runs: what is written when, and what follows once it is, or is not.

use super::samples::{Ask, ask, offer};
use super::*;
use crate::dispatch::{Adopted, Back, Change, Loaded, Replay, Start, Stored, Write};
use crate::run::Counts;
use crate::store::{Holder, State};

/// What a step does, in a word.
pub(super) fn word(write: &Write) -> &'static str {
    match write.change {
        Change::Enqueue { first: None, .. } => "enqueue",
        Change::Enqueue { .. } => "enqueue and start",
        Change::StartAttempt(_) => "start",
        Change::Append(_) => "append",
        Change::EndAttempt { .. } => "end attempt",
        Change::Finish { .. } => "finish",
        Change::Note => "note",
    }
}

pub(super) fn writes(actions: &[Action]) -> Vec<&'static str> {
    let write = |action: &Action| {
        if let Action::Write(write) = action {
            Some(word(write))
        } else {
            None
        }
    };
    actions.iter().filter_map(write).collect()
}

pub(super) fn finished(actions: &[Action]) -> Option<State> {
    actions.iter().find_map(|action| {
        if let Action::Write(Write {
            change: Change::Finish { state, .. },
            ..
        }) = action
        {
            Some(*state)
        } else {
            None
        }
    })
}

pub(super) fn acknowledged(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| {
        if let Action::Acknowledge { seq, .. } = action {
            Some(*seq)
        } else {
            None
        }
    })
}

pub(super) fn is_started(actions: &[Action], id: RunId) -> bool {
    let started = |action: &Action| matches!(action, Action::Started { run, started: Ok(made) } if *run == id && made == run);
    actions.iter().any(started)
}

/// Why a run was not started.
pub(super) fn refusal(actions: &[Action]) -> Option<&Failure> {
    actions.iter().find_map(|action| {
        if let Action::Started { started, .. } = action {
            started.as_ref().err().map(|failure| &**failure)
        } else {
            None
        }
    })
}

pub(super) fn start_of() -> Box<Start> {
    Box::new(Start {
        not_before: None,
        labels: Default::default(),
        options: Default::default(),
    })
}

impl World {
    pub(super) fn start_as(&mut self, ask: Ask, start: Box<Start>) -> (RunId, Vec<Action>) {
        self.next_durable += 1;
        let run = RunId(Uuid::from_u128(1_000_000 + self.next_durable));
        let mut request = ask.request;
        request.durable = Some("".into());
        let event = Event::Start {
            run,
            request,
            terms: run::Terms {
                deadline: self.now + ask.timeout,
                retry: Arc::new(ask.retry),
                uncounted_max: 2,
                poison_max: 3,
            },
            placing: ask.placing,
            start,
        };
        (run, self.apply(event))
    }

    pub(super) fn start(&mut self, agent: &str) -> (RunId, Vec<Action>) {
        self.start_as(ask(agent).max_attempts(3), start_of())
    }

    pub(super) fn stored(&mut self, run: RunId) -> Vec<Action> {
        let stored = Stored::Done;
        self.apply(Event::Stored { run, stored })
    }

    pub(super) fn unwritten(&mut self, run: RunId) -> Vec<Action> {
        let stored = Stored::Failed(Failure::new(Code::StoreUnavailable, "full"));
        self.apply(Event::Stored { run, stored })
    }

    /// Has everything of a run written, until nothing more follows.
    pub(super) fn settled(&mut self, run: RunId) -> Vec<Action> {
        let mut all = Vec::new();
        let pending = |world: &Self| {
            let entry = world.core.runs.get(&run);
            entry.is_some_and(|entry| {
                let durable = entry.durable.as_ref().expect("a durable run");
                !durable.pending.is_empty()
            })
        };
        while pending(self) {
            all.extend(self.stored(run));
        }
        all
    }

    pub(super) fn load(&mut self, run: RunId) -> Vec<Action> {
        let mut request = ask("echo").request;
        request.durable = Some("".into());
        let loaded = Some(Box::new(Loaded {
            request,
            replay: Replay::default(),
        }));
        self.apply(Event::Loaded { run, loaded })
    }

    pub(super) fn append(
        &mut self,
        slot: SlotId,
        seq: u64,
        kind: EntryKind,
        bytes: usize,
    ) -> Vec<Action> {
        let delivery = self.held(slot).expect("the slot must hold a request");
        let entry = vec![0; bytes].into();
        let acknowledged = seq - 1;
        self.frame(
            slot,
            Frame::Append {
                delivery,
                seq,
                kind,
                entry,
                acknowledged,
            },
        )
    }

    pub(super) fn resume(
        &mut self,
        offer: Offer,
        delivery: Delivery,
        lease: Lease,
    ) -> (SlotId, Vec<Action>) {
        self.next_slot += 1;
        let slot = SlotId(self.next_slot);
        let back = Some(Back::Resume(delivery, lease));
        (slot, self.apply(Event::Opened { slot, offer, back }))
    }

    /// Takes a run in as a harness that was started anew does.
    pub(super) fn adopt(&mut self, running: Option<Holder>) -> (RunId, Vec<Action>) {
        let id = self.next_adopted();
        let actions = self.adopt_as(id, running, (None, Policy::attempts(3)), false);
        (id, actions)
    }

    /// The same with a run that waits since a reply, of that number, failed its attempt.
    pub(super) fn adopt_replied(&mut self, holder: Holder, reply_seq: u64) -> (RunId, Vec<Action>) {
        let id = self.next_adopted();
        let adopted = Adopted {
            running: false,
            reply_seq,
            ..self.adopted(Some(holder), (None, Policy::attempts(3)))
        };
        let actions = self.apply(Event::Adopt {
            run: id,
            adopted: Some(Box::new(adopted)),
            again: false,
        });
        (id, actions)
    }

    /// Takes a run in again whose step was not written.
    pub(super) fn adopt_again(&mut self, id: RunId, running: Option<Holder>) -> Vec<Action> {
        self.adopt_as(id, running, (None, Policy::attempts(3)), true)
    }

    /// The same with an attempt that began then and may take so long, and is the only one.
    pub(super) fn adopt_timed(
        &mut self,
        holder: Holder,
        began: Instant,
        timeout: Duration,
    ) -> (RunId, Vec<Action>) {
        let policy = Policy {
            attempt_timeout: Some(timeout),
            ..Policy::attempts(1)
        };
        let id = self.next_adopted();
        let actions = self.adopt_as(id, Some(holder), (Some(began), policy), false);
        (id, actions)
    }

    fn next_adopted(&mut self) -> RunId {
        self.next_durable += 1;
        RunId(Uuid::from_u128(1_000_000 + self.next_durable))
    }

    fn adopt_as(
        &mut self,
        id: RunId,
        running: Option<Holder>,
        (began, policy): (Option<Instant>, Policy),
        again: bool,
    ) -> Vec<Action> {
        let adopted = Some(Box::new(self.adopted(running, (began, policy))));
        self.apply(Event::Adopt {
            run: id,
            adopted,
            again,
        })
    }

    fn adopted(
        &self,
        running: Option<Holder>,
        (began, policy): (Option<Instant>, Policy),
    ) -> Adopted {
        let mut request = ask("echo").request.header();
        request.durable = Some("".into());
        Adopted {
            request,
            frame_bytes: 100,
            terms: run::Terms {
                deadline: self.now + MINUTE,
                retry: Arc::new(policy),
                uncounted_max: 2,
                poison_max: 3,
            },
            placing: Default::default(),
            created: self.now,
            not_before: None,
            attempt: Attempt(u32::from(running.is_some())),
            counts: Counts::default(),
            running: running.is_some(),
            began,
            holder: running,
            head: 2,
            bytes: 0,
            worker_seq: if running.is_some() { 4 } else { 0 },
            reply_seq: 0,
            replayed: None,
        }
    }

    pub(super) fn is_here(&self, run: RunId) -> bool {
        self.core.runs.contains_key(&run)
    }

    /// Has the run end, so that nothing is left when the test is over.
    pub(super) fn end(&mut self, run: RunId) {
        self.settled(run);
        self.apply(Event::CancelRequested {
            run,
            who: "test".into(),
            why: String::new(),
        });
        self.settled(run);
        assert!(!self.is_here(run), "it has ended");
    }
}

#[test]
fn a_run_with_a_free_slot_costs_two_commits() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, actions) = world.start("echo");
    assert_eq!(writes(&actions), ["enqueue and start"]);
    assert!(
        deliveries(&actions).is_empty(),
        "the attempt is on disk first"
    );
    let actions = world.stored(run);
    assert!(is_started(&actions, run));
    assert_eq!(deliveries(&actions).len(), 1);
    world.accept(slot);

    let actions = world.reply(slot);
    assert_eq!(writes(&actions), ["finish"]);
    assert_eq!(acknowledged(&actions), None, "it is not on disk yet");
    let actions = world.stored(run);
    assert_eq!(acknowledged(&actions), Some(1));
    let decided = |action: &Action| matches!(action, Action::Decided { failure: None, .. });
    assert!(actions.iter().any(decided));
    assert!(!world.is_here(run));
}

#[test]
fn a_run_that_waits_is_a_header_and_is_read_for_its_slot() {
    let mut world = World::new();
    let busy = world.attach(offer("echo", 1));
    let asked = world.ask("echo");
    let (run, actions) = world.start("echo");
    assert_eq!(writes(&actions), ["enqueue"]);
    assert!(is_started(&world.stored(run), run));
    assert!(world.core.runs[&run].request.payload.data.is_empty());

    let actions = world.reply(busy);
    assert!(world.is_answered(asked));
    assert!(
        actions
            .iter()
            .any(|it| matches!(it, Action::Load { run: read, .. } if *read == run))
    );
    let actions = world.load(run);
    assert_eq!(writes(&actions), ["start"]);
    assert_eq!(deliveries(&world.stored(run)).len(), 1);
    assert!(world.core.runs[&run].request.payload.data.is_empty());
    world.accept(busy);
    world.reply(busy);
    world.stored(run);
}

#[test]
fn a_run_that_cannot_be_read_does_not_hold_up_those_behind_it() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (broken, _) = world.adopt(None);
    let (sound, _) = world.adopt(None);
    let read = |actions: &[Action]| {
        actions.iter().find_map(|action| {
            if let Action::Load { run, .. } = action {
                Some(*run)
            } else {
                None
            }
        })
    };
    let loaded = None;
    let actions = world.apply(Event::Loaded {
        run: broken,
        loaded,
    });
    assert_eq!(read(&actions), None, "nothing is read for a second");
    let actions = world.pass(std::time::Duration::from_secs(1));
    assert_eq!(read(&actions), Some(sound));
    world.load(sound);
    world.settled(sound);
    assert_eq!(world.held(slot).map(|held| held.run), Some(sound));
    for run in [sound, broken] {
        world.end(run);
    }
}

#[test]
fn an_ask_goes_before_durable_runs_of_its_priority() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let first = world.ask("echo");
    let (run, _) = world.start("echo");
    world.stored(run);
    let second = world.ask("echo");
    world.reply(slot);
    assert!(world.is_answered(first));
    assert_eq!(world.run_in(slot), Some(second));
    world.end(run);
}

#[test]
fn a_reply_is_acknowledged_before_the_slot_gets_an_ask() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.accept(slot);
    let asked = world.ask("echo");
    world.reply(slot);
    assert_eq!(world.run_in(slot), None, "its reply is not on disk");
    let actions = world.stored(run);
    let place = |wanted: fn(&Action) -> bool| actions.iter().position(wanted);
    let acknowledged = place(|it| matches!(it, Action::Acknowledge { .. }));
    let delivered = place(|it| matches!(it, Action::Deliver { .. }));
    assert!(acknowledged < delivered && acknowledged.is_some());
    assert_eq!(world.run_in(slot), Some(asked));
}

#[test]
fn entries_are_acknowledged_once_they_are_on_disk() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    for seq in 1..=2 {
        let actions = world.append(slot, seq, EntryKind::Step, 10);
        assert_eq!(
            (writes(&actions), acknowledged(&actions)),
            (vec!["append"], None)
        );
    }
    assert_eq!(acknowledged(&world.stored(run)), Some(1));
    // The second is taken and not on disk: said again, it is not acknowledged yet.
    let again = world.append(slot, 2, EntryKind::Step, 10);
    assert_eq!((writes(&again), acknowledged(&again)), (vec![], Some(1)));
    assert_eq!(acknowledged(&world.stored(run)), Some(2));
    world.end(run);
}

#[test]
fn a_journal_at_its_limit_ends_the_run_and_then_its_call() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.append(slot, 1, EntryKind::Plain, 900);
    world.stored(run);
    let actions = world.append(slot, 2, EntryKind::Plain, 900);
    assert_eq!(finished(&actions), Some(State::Failed));
    assert!(ends(&actions).is_empty(), "a row first and a signal second");
    let actions = world.stored(run);
    assert!(matches!(ends(&actions)[..], [(_, End::Cancelled(_))]));
}

#[test]
fn a_cancel_is_a_row_first_and_whichever_is_decided_first_stands() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.accept(slot);
    let cancel = |run| Event::CancelRequested {
        run,
        who: "me".into(),
        why: "enough".into(),
    };
    let actions = world.apply(cancel(run));
    assert_eq!(finished(&actions), Some(State::Cancelled));
    assert!(ends(&actions).is_empty());
    // The reply crosses it: it changes nothing, and its call is ended as any other.
    let delivery = world.held(slot).expect("it works");
    let actions = world.reply(slot);
    assert_eq!(writes(&actions), Vec::<&str>::new());
    let actions = world.stored(run);
    let ended = vec![(slot, End::Cancelled(delivery))];
    assert_eq!((ends(&actions), acknowledged(&actions)), (ended, None));

    let slot = world.attach(offer("echo", 2));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.accept(slot);
    assert_eq!(finished(&world.reply(slot)), Some(State::Succeeded));
    assert_eq!(writes(&world.apply(cancel(run))), Vec::<&str>::new());
    world.stored(run);
}

#[test]
fn a_failed_attempt_is_written_and_the_run_tried_again() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.accept(slot);
    let mut failure = Failure::new(Code::AgentError, "it broke");
    failure.retryable = true;
    let actions = world.reply_with(slot, Reply::Error(failure));
    assert_eq!(writes(&actions), ["end attempt"]);
    assert_eq!(acknowledged(&world.stored(run)), Some(1));
    let actions = world.pass(SECOND);
    assert!(actions.iter().any(|it| matches!(it, Action::Load { .. })));
    assert_eq!(writes(&world.load(run)), ["start"]);
    let delivered = deliveries(&world.stored(run));
    assert_eq!(delivered[0].1.attempt, Attempt(2));
    world.accept(slot);
    world.reply(slot);
    world.stored(run);
}
