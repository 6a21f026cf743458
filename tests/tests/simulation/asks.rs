//! Callers: what they ask, and when they hang up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use harness_server::dispatch::{Event, Placing};
use harness_server::envelope::{Caller, Payload, Request};
use harness_server::ids::{AgentKey, Attempt, Delivery};
use harness_server::retry::Policy;
use harness_server::run::Terms;

use crate::frames::FORBIDDEN;
use crate::model::{Asked, POISON_MAX, State, Trigger, UNCOUNTED_MAX, run_id};
use crate::setting::{AGENTS, LABELS, pairs};
use crate::world::{What, World};

const BYTES: &[u8] = &[b'1'; 2500];
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Where the runs of one seed share what is the same.
pub(crate) struct Templates {
    agents: Vec<AgentKey>,
    caller: Caller,
    once: Arc<Policy>,
}

impl Templates {
    pub(crate) fn new() -> Self {
        Self {
            agents: AGENTS.iter().map(|name| AgentKey::new("", name)).collect(),
            caller: Caller {
                subject: "a".into(),
                namespace: "default".into(),
            },
            once: Arc::new(Policy::attempts(1)),
        }
    }
}

impl World {
    pub(crate) fn ask(&mut self, waits_for: Option<usize>) {
        let run = self.model.runs.len();
        let paces = if self.has_window() { 45 } else { 25 };
        let random = &mut self.random;
        let agent = waits_for.unwrap_or_else(|| random.mostly(70, 0, &[0, 1, 2]));
        let timeout = random.time(20 * MILLI, 40 * SECOND);
        let selector = random.mostly(75, LABELS[0], &LABELS);
        let priority = random.mostly(60, 0, &[-100, -1, 1, 100]);
        let wait_for_agent = waits_for.is_some() || random.percent(40);
        let paced = random.percent(paces);
        let watched = random.percent(15);
        let patience = random.percent(20).then(|| random.micros(100, 20_000_000));
        let policy = self.policy();
        let request = self.request(agent);
        let deadline = self.now() + timeout;
        self.before(Trigger::Ask(run));
        self.model.ask(Asked {
            agent,
            request: request.clone(),
            deadline,
            policy: policy.clone(),
            selector: pairs(selector),
            priority,
            wait_for_agent,
            paced,
        });
        self.apply(Event::Ask {
            run: run_id(run),
            request,
            terms: Terms {
                deadline,
                retry: policy,
                uncounted_max: UNCOUNTED_MAX,
                poison_max: POISON_MAX,
            },
            placing: Placing {
                selector: pairs(selector),
                priority,
                wait_for_agent,
                paced,
            },
        });
        if watched {
            self.watches(run, true);
            let after = self.random.micros(1000, 20_000_000);
            self.later(after, What::CeaseToWatch(run));
        }
        if let Some(patience) = patience {
            self.later(patience, What::HangUp(run));
        }
    }

    fn request(&mut self, agent: usize) -> Request {
        let most = self.random.mostly(85, 300, &[BYTES.len()]);
        let bytes = self.random.index(most);
        Request {
            agent: self.templates.agents[agent].clone(),
            payload: Payload {
                content_type: self.random.mostly(90, "", &["text/plain"]).to_owned(),
                data: Bytes::from_static(&BYTES[..bytes]),
            },
            metadata: HashMap::new(),
            caller: self.templates.caller.clone(),
            trace: None,
            parent: self.parent(),
            depth: 0,
            durable: None,
        }
    }

    fn policy(&mut self) -> Arc<Policy> {
        let random = &mut self.random;
        if random.percent(50) {
            return self.templates.once.clone();
        }
        let mut policy = Policy::attempts(1 + random.below(4) as u32);
        policy.initial_backoff = random.time(MILLI, 10 * SECOND) - MILLI;
        policy.max_backoff = random.time(MILLI, 20 * SECOND);
        policy.non_retryable_types.push(FORBIDDEN.to_owned());
        if random.percent(40) {
            policy.attempt_timeout = Some(random.time(MILLI, 20 * SECOND));
        }
        Arc::new(policy)
    }

    /// The delivery that asks: mostly none, mostly one that runs.
    fn parent(&mut self) -> Option<Delivery> {
        if self.model.runs.is_empty() || !self.random.percent(self.chains) {
            return None;
        }
        let newest = self.model.runs.len() - 1;
        let last = |back: usize| newest - back.min(newest);
        let from = self.random.index(4);
        let runs = |run: &usize| {
            let state = self.model.runs[*run].state;
            matches!(state, State::Running(_) | State::Away(_))
        };
        let run = (from..8).map(last).find(runs).unwrap_or(last(from));
        let wrong = u32::from(self.random.percent(10));
        Some(Delivery {
            run: run_id(run),
            attempt: Attempt(self.model.runs[run].attempt + wrong),
        })
    }

    pub(crate) fn hang_up(&mut self, run: usize) {
        let asked = self.random.percent(30);
        self.before(Trigger::Cancelled(run));
        let (run, why) = (run_id(run), String::new());
        self.apply(if asked {
            Event::CancelRequested {
                run,
                who: "a".into(),
                why,
            }
        } else {
            Event::Cancelled { run, why }
        });
    }

    pub(crate) fn watches(&mut self, run: usize, more: bool) {
        self.before(Trigger::Watched);
        self.model.watches(run, more);
        self.apply(Event::Watched {
            run: run_id(run),
            more,
        });
    }

    /// The caller of a run reads what there is of its journal, or a part.
    pub(crate) fn caller_reads(&mut self, run: usize) {
        let Some(view) = self.core.view_run(self.now(), run_id(run)) else {
            return;
        };
        let unread = &self.model.runs[run].unread;
        let seq = if unread.is_empty() || self.random.percent(50) {
            view.head
        } else {
            unread[self.random.index(unread.len())].0
        };
        let output = self.random.percent(40);
        self.before(Trigger::Read);
        self.model.read(run, seq, output);
        self.apply(Event::Read {
            run: run_id(run),
            seq,
            output,
        });
    }
}
