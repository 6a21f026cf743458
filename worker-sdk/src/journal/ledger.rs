//! The steps of a run: what is recorded, what of it the code has asked for.
//!
//! Pure: an ask goes in, what is to be done comes out. Owns the matching of recorded steps (keyed
//! ones by name and key, in any order; keyless ones one after the other, in the order recorded) and
//! what each class of effect does about a step that was begun and never recorded as done. Writes
//! nothing.
#![deny(clippy::wildcard_enum_match_arm)]

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;

use super::{Entry, Outcome, Recorded, StepError, Usage};

/// What running the work again would do; it decides what is written before the work runs, and what
/// happens when an attempt ended between its begin and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing: its begin is not recorded.
    ReadOnly,
    /// The same as running it once, under the same idempotency key.
    Idempotent,
    /// Can be asked about before it is run again.
    Verifiable,
    /// Must not happen twice.
    Once,
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) key: String,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.key)
    }
}

/// What is to be done about a step that was asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// Nothing: this is its result.
    Recorded { id: Id, outcome: Outcome },
    /// Its work is to run, and [`Ledger::done`] or [`Ledger::dropped`] be told.
    Run {
        id: Id,
        /// Its begin is to be recorded before.
        begin: bool,
        /// It was begun before: ask its check first.
        check: bool,
    },
}

/// The steps of one run, as one attempt sees them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    run_id: String,
    steps: HashMap<Id, State>,
    /// The recorded keyless ones the code has not asked for yet.
    expected: VecDeque<Id>,
    /// How often each name was asked for without a key.
    occurrences: HashMap<String, u64>,
    /// A keyless step is running.
    keyless_runs: bool,
    used: Vec<Usage>,
    /// How much of it is older than the newest result that stands.
    settled: usize,
}

#[derive(Debug)]
enum State {
    Begun,
    Running {
        begun: bool,
    },
    Done(Outcome),
    /// It failed in a way that may pass, and nothing was recorded after it, so that no recorded
    /// decision rests on the failure: it may be tried again.
    MayPass(Outcome),
}

impl Ledger {
    /// What earlier attempts of the run recorded, oldest first.
    pub(crate) fn of(run_id: &str, recorded: Vec<Recorded>) -> Self {
        let mut ledger = Self {
            run_id: run_id.to_owned(),
            ..Self::default()
        };
        let mut last = None;
        let (mut last_result, mut settled_before) = (None, 0);
        for Recorded { entry, .. } in recorded {
            match entry {
                Entry::Step(step) => {
                    let id = Id {
                        name: step.name,
                        key: step.key,
                    };
                    if is_keyless(&id.key) && !ledger.steps.contains_key(&id) {
                        ledger.expected.push_back(id.clone());
                    }
                    if step.outcome.is_some() {
                        // A result that may pass is replaced by the next one of its step.
                        if last_result.as_ref() != Some(&id) {
                            settled_before = ledger.settled;
                        }
                        ledger.settled = ledger.used.len();
                        last_result = Some(id.clone());
                    }
                    let state = step.outcome.map_or(State::Begun, State::Done);
                    ledger.steps.insert(id.clone(), state);
                    last = Some(id);
                }
                Entry::Usage(usage) => ledger.used.push(*usage),
                Entry::Output(_) | Entry::Progress { .. } | Entry::Log { .. } => {}
            }
        }
        if let Some(state) = last.and_then(|id| ledger.steps.get_mut(&id))
            && let State::Done(Err(error)) = state
            && error.retryable
        {
            *state = State::MayPass(Err(error.clone()));
            ledger.settled = settled_before;
        }
        ledger
    }

    /// The code asks for a step. `nested`: from within the work of another one.
    pub(crate) fn ask(
        &mut self,
        name: &str,
        key: Option<&str>,
        effect: Effect,
        nested: bool,
    ) -> Result<Asked, StepError> {
        let id = match key {
            Some(key) => given(name, key)?,
            None => self.next_of(name, nested)?,
        };
        let (begin, check, begun) = match self.steps.get(&id) {
            None => (effect != Effect::ReadOnly, false, false),
            Some(State::Done(outcome)) => {
                let outcome = outcome.clone();
                return Ok(Asked::Recorded { id, outcome });
            }
            Some(State::MayPass(outcome)) if effect == Effect::Once => {
                let outcome = outcome.clone();
                return Ok(Asked::Recorded { id, outcome });
            }
            Some(State::Running { .. }) => {
                return Err(StepError::Misused(format!(
                    "the step {id} is running already: give each its own key"
                )));
            }
            Some(State::Begun) if effect == Effect::Once => {
                return Err(StepError::OutcomeUnknown {
                    idempotency_key: self.idempotency_key(&id),
                    name: id.name,
                    key: id.key,
                });
            }
            Some(State::Begun) => (false, effect == Effect::Verifiable, true),
            Some(State::MayPass(_)) => (false, false, true),
        };
        self.keyless_runs |= key.is_none();
        self.steps.insert(id.clone(), State::Running { begun });
        Ok(Asked::Run { id, begin, check })
    }

    /// What is recorded of a step with a key: nothing, a begin, or a result. One that may be tried
    /// again has begun.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn recorded(&self, name: &str, key: &str) -> Option<Option<Outcome>> {
        let id = Id {
            name: name.to_owned(),
            key: key.to_owned(),
        };
        match self.steps.get(&id)? {
            State::Begun | State::MayPass(_) | State::Running { begun: true } => Some(None),
            State::Running { begun: false } => None,
            State::Done(outcome) => Some(Some(outcome.clone())),
        }
    }

    /// The next keyless step of this name, if it is the one to come.
    fn next_of(&mut self, name: &str, nested: bool) -> Result<Id, StepError> {
        if name.is_empty() {
            return Err(StepError::Misused("a step has a name".to_owned()));
        }
        if nested || self.keyless_runs {
            return Err(StepError::Misused(format!(
                "the step {name} is asked for while another one runs: steps without a key run one \
                 after the other; give this one a key"
            )));
        }
        let occurrence = self.occurrences.get(name).copied().unwrap_or(0) + 1;
        let id = Id {
            name: name.to_owned(),
            key: occurrence.to_string(),
        };
        if let Some(next) = self.expected.front() {
            if *next != id {
                return Err(StepError::Mismatch {
                    asked: id.to_string(),
                    recorded: next.to_string(),
                });
            }
            self.expected.pop_front();
        }
        self.occurrences.insert(name.to_owned(), occurrence);
        Ok(id)
    }

    /// The result of a running step is recorded.
    pub(crate) fn done(&mut self, id: Id, outcome: Outcome) {
        self.ended(&id);
        self.settled = self.used.len();
        self.steps.insert(id, State::Done(outcome));
    }

    /// A running step was given up without a result. `ran`: its work may have had its effect.
    pub(crate) fn dropped(&mut self, id: Id, ran: bool) {
        self.ended(&id);
        match self.steps.get(&id) {
            Some(State::Running { begun }) if ran || *begun => {
                self.steps.insert(id, State::Begun);
            }
            Some(State::Running { .. }) => {
                self.steps.remove(&id);
            }
            Some(State::Begun | State::Done(_) | State::MayPass(_)) | None => {}
        }
    }

    fn ended(&mut self, id: &Id) {
        if is_keyless(&id.key) {
            self.keyless_runs = false;
        }
    }

    /// The same in every attempt, for the services the work calls.
    pub(crate) fn idempotency_key(&self, id: &Id) -> String {
        format!("{}/{}/{}", self.run_id, id.name, id.key)
    }

    /// Another model call used this.
    pub(crate) fn use_up(&mut self, usage: Usage) {
        self.used.push(usage);
    }

    /// What all attempts used, oldest first.
    pub(crate) fn used(&self) -> Vec<Usage> {
        self.used.clone()
    }

    /// Of that, what was used since a step last got a result that stands: by work of which nothing
    /// else is left.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn unsettled(&self) -> Vec<Usage> {
        self.used[self.settled..].to_vec()
    }
}

/// The number of an occurrence is no key that code may give, so that the two cannot be mixed up.
fn is_keyless(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_digit())
}

fn given(name: &str, key: &str) -> Result<Id, StepError> {
    if name.is_empty() {
        return Err(StepError::Misused("a step has a name".to_owned()));
    }
    if is_keyless(key) {
        return Err(StepError::Misused(format!(
            "{key:?} cannot be the key of the step {name}: a key has something else than digits, \
             which number the steps without one; write order-{key}, for example"
        )));
    }
    Ok(Id {
        name: name.to_owned(),
        key: key.to_owned(),
    })
}
