//! Callers of durable runs, and of a few interactive ones beside them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use harness_server::dispatch::{Event, Placing, Start};
use harness_server::envelope::{Payload, Request};
use harness_server::ids::{AgentKey, RunId};
use harness_server::retry::Policy;
use harness_server::run::{Counts, Terms};

use super::account::{Ask, Run, Stand, Trigger};
use super::life::{Health, Phase};
use super::setting::{POISON_MAX, SECOND, UNCOUNTED_MAX, ask_id, caller, durable_id};
use super::{What, World};
use crate::setting::{AGENTS, LABELS, pairs};
use crate::tally::Tally;

const MILLI: Duration = Duration::from_millis(1);

/// Payloads; the first byte says how many steps a run has.
static PAYLOADS: &[u8] = &[b'1'; 1200];

impl World {
    /// Somebody starts a run, or asks again for the one that was not answered.
    pub(super) fn starts(&mut self, again: Option<RunId>, tally: &mut Tally) {
        if self.is_over {
            return;
        }
        if self.phase == Phase::Down {
            let after = self.random.micros(1000, 1_000_000);
            let what = again.map_or(What::Start, What::StartAgain);
            return self.later(after, what);
        }
        let before = again.and_then(|run| self.account.runs.get(&run));
        let (request, terms, placing, not_before) = match before {
            Some(run) if run.request.durable.as_deref() == Some("") => return,
            Some(run) => {
                let (request, terms) = (run.request.clone(), run.terms.clone());
                (request, terms, run.placing.clone(), run.not_before)
            }
            None => self.draws_run(),
        };
        let id = durable_id(self.started);
        self.started += 1;
        let run = Run {
            request: request.clone(),
            terms: terms.clone(),
            placing: placing.clone(),
            not_before,
            stand: Stand::New,
            attempt: harness_server::ids::Attempt::default(),
            counts: Counts::default(),
            taken: 0,
            replied: 0,
            attempt_ends: None,
            told: None,
            unheard: false,
            cancels: 0,
            avoids: false,
            has_steps: false,
        };
        self.account.runs.insert(id, run);
        let event = Event::Start {
            run: id,
            request,
            terms,
            placing,
            start: Box::new(Start {
                not_before,
                labels: Default::default(),
                options: Bytes::new(),
            }),
        };
        self.apply(Trigger::Start(id), event, tally);
        if self.random.percent(20) {
            let after = self.random.micros(100, 20_000_000);
            self.later(after, What::Cancel(id));
        }
    }

    fn draws_run(&mut self) -> (Request, Terms, Placing, Option<std::time::Instant>) {
        let now = self.now();
        let random = &mut self.random;
        let key = random.mostly(60, "", &["a", "b"]);
        let bytes = random.mostly(80, 20, &[21, 22, 900]);
        let steps = random.below(4) as usize;
        let selector = random.mostly(80, LABELS[0], &LABELS);
        let not_before = random
            .percent(20)
            .then(|| now + random.time(MILLI, 20 * SECOND));
        let deadline = now + random.time(50 * MILLI, 60 * SECOND);
        let request = Request {
            agent: AgentKey::new("", random.mostly(80, AGENTS[0], &AGENTS[1..])),
            payload: Payload {
                content_type: String::new(),
                data: Bytes::from_static(&PAYLOADS[..bytes + steps]),
            },
            metadata: HashMap::new(),
            caller: caller(),
            trace: None,
            parent: None,
            depth: 0,
            durable: Some(Arc::from(key)),
        };
        let mut policy = Policy::attempts(1 + random.below(5) as u32);
        policy.initial_backoff = random.time(MILLI, 5 * SECOND) - MILLI;
        policy.max_backoff = random.time(MILLI, 10 * SECOND);
        if random.percent(30) {
            policy.attempt_timeout = Some(random.time(100 * MILLI, 20 * SECOND));
        }
        let terms = Terms {
            deadline: not_before.unwrap_or(now).max(now) + (deadline - now),
            retry: Arc::new(policy),
            uncounted_max: UNCOUNTED_MAX,
            poison_max: POISON_MAX,
        };
        let placing = Placing {
            selector: pairs(selector),
            priority: random.mostly(70, 0, &[-1, 1]),
            wait_for_agent: random.percent(70),
            paced: false,
        };
        (request, terms, placing, not_before)
    }

    /// Somebody cancels a run, which is taken in for it if it is not here.
    pub(super) fn cancels(&mut self, run: RunId, tally: &mut Tally) {
        if self.phase == Phase::Down || self.is_over || self.core.is_adrift(run) {
            return;
        }
        if !self.core.has_durable(run) {
            let Some((adopted, head)) = self.read(run) else {
                return;
            };
            self.adopts(run, adopted, (head, false), tally);
        }
        if self.core.has_durable(run) {
            tally.meet("durable: a run is cancelled");
            self.account.run(run).cancels += 1;
        }
        let event = Event::CancelRequested {
            run,
            who: "a".into(),
            why: String::new(),
        };
        self.apply(Trigger::Cancel(run), event, tally);
    }

    pub(super) fn asks(&mut self, tally: &mut Tally) {
        if self.is_over || self.phase != Phase::Serves {
            return;
        }
        let id = ask_id(self.asked);
        self.asked += 1;
        let (request, terms, placing, _) = self.draws_run();
        let request = Request {
            durable: None,
            ..request
        };
        let deadline = terms.deadline;
        let answered = false;
        self.account.asks.insert(id, Ask { deadline, answered });
        let event = Event::Ask {
            run: id,
            request,
            terms,
            placing,
        };
        self.apply(Trigger::Ask, event, tally);
        if self.random.percent(20) {
            let after = self.random.micros(100, 20_000_000);
            self.later(after, What::HangUp(id));
        }
    }

    pub(super) fn hangs_up(&mut self, run: RunId, tally: &mut Tally) {
        if self.phase != Phase::Down {
            let why = String::new();
            self.apply(Trigger::Ask, Event::Cancelled { run, why }, tally);
        }
    }

    /// Whether the disk can be read.
    pub(super) fn is_readable(&self) -> bool {
        self.health != Health::Fails
    }
}
