//! Whoever waits for the answer of a run, one or many, and whoever reads its journal.

use std::sync::Arc;

use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use crate::dispatch::{Event, Placing, Reading, RunView, trim};
use crate::envelope::{Answer, Failure, Request};
use crate::ids::RunId;
use crate::run::Terms;

use super::{Engine, State};

/// Where the answer of a run goes.
pub(super) enum Caller {
    /// To one who waits for it alone.
    One(oneshot::Sender<Answer>),
    /// To one who asks many at once: its place among the answers, and its tag.
    Many(OwnedPermit<ManyAnswer>, u64),
}

/// An answer to one of many asks.
#[derive(Debug)]
pub struct Tagged {
    /// The caller's number of the ask.
    pub tag: u64,
    /// Its run; none when the ask never became one.
    pub run: Option<RunId>,
    /// The answer.
    pub answer: Answer,
}

/// What comes back to one who asks many: answers, or why the call ends.
pub type ManyAnswer = Result<Tagged, Box<Failure>>;

impl Caller {
    pub(super) fn answer(self, run: RunId, answer: Answer) {
        match self {
            // A caller that has gone meanwhile needs no answer.
            Self::One(caller) => drop(caller.send(answer)),
            Self::Many(place, tag) => {
                let run = Some(run);
                drop(place.send(Ok(Tagged { tag, run, answer })));
            }
        }
    }
}

impl Engine {
    /// Starts a run. Dropping what comes back before it is answered cancels the run.
    #[must_use]
    pub fn ask(&self, request: Request, terms: Terms, placing: Placing) -> Asked {
        let (sender, answer) = oneshot::channel();
        let run = self.start(Caller::One(sender), request, terms, placing, |_, _| {});
        Asked {
            engine: self.clone(),
            run,
            answer,
            answered: false,
        }
    }

    /// Starts a run whose journal the caller reads from its beginning on.
    #[must_use]
    pub fn ask_watched(&self, request: Request, terms: Terms, placing: Placing) -> (Asked, Watch) {
        let (sender, answer) = oneshot::channel();
        let (bell, grown) = watch::channel(());
        let run = self.start(
            Caller::One(sender),
            request,
            terms,
            placing,
            |state, run| {
                state.watches.insert(run, bell);
            },
        );
        self.apply(Event::Watched { run, more: true });
        let asked = Asked {
            engine: self.clone(),
            run,
            answer,
            answered: false,
        };
        let watch = Watch {
            engine: self.clone(),
            run,
            grown,
        };
        (asked, watch)
    }

    /// Starts one of many runs; its answer goes to its place.
    #[must_use]
    pub fn ask_tagged(
        &self,
        (place, tag): (OwnedPermit<ManyAnswer>, u64),
        request: Request,
        terms: Terms,
        placing: Placing,
    ) -> RunId {
        self.start(Caller::Many(place, tag), request, terms, placing, |_, _| {})
    }

    /// The caller of a run hung up.
    pub fn hung_up(&self, run: RunId) {
        let why = "the caller hung up".to_owned();
        self.apply(Event::Cancelled { run, why });
    }

    /// Somebody asks for a run to be stopped.
    pub fn cancel(&self, run: RunId, who: Arc<str>, why: String) {
        self.apply(Event::CancelRequested { run, who, why });
    }

    /// What is known of a run.
    #[must_use]
    pub fn run_view(&self, run: RunId) -> Option<RunView> {
        self.lock().core.view_run(std::time::Instant::now(), run)
    }

    /// Follows the journal of a known run.
    #[must_use]
    pub fn watch(&self, run: RunId) -> Option<Watch> {
        let grown = {
            let mut state = self.lock();
            state.core.view_run(std::time::Instant::now(), run)?;
            state.watches.entry(run).or_default().subscribe()
        };
        self.apply(Event::Watched { run, more: true });
        Some(Watch {
            engine: self.clone(),
            run,
            grown,
        })
    }

    fn start(
        &self,
        caller: Caller,
        request: Request,
        terms: Terms,
        placing: Placing,
        prepare: impl FnOnce(&mut State, RunId),
    ) -> RunId {
        let run = RunId(Uuid::now_v7());
        let event = Event::Ask {
            run,
            request,
            terms,
            placing,
        };
        self.apply_with(event, |state| {
            state.callers.insert(run, caller);
            prepare(state, run);
        });
        run
    }
}

/// A run that was started, until its answer.
pub struct Asked {
    engine: Engine,
    run: RunId,
    answer: oneshot::Receiver<Answer>,
    answered: bool,
}

impl Asked {
    /// Its run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Waits for the answer. Every run gets one, at its deadline at the latest.
    pub async fn answer(mut self) -> Answer {
        let answer = (&mut self.answer).await;
        self.answered = true;
        answer.expect("a run must be answered before its caller is forgotten")
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.engine.hung_up(self.run);
        }
    }
}

/// A reader of a run's journal; the run is kept as long as it is there.
pub struct Watch {
    engine: Engine,
    run: RunId,
    grown: watch::Receiver<()>,
}

impl Watch {
    /// Its run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Up to `max` entries from a number on; none when the run is not known any more.
    #[must_use]
    pub fn read(&self, from: u64, max: usize) -> Option<Reading> {
        self.engine.lock().core.read_journal(self.run, from, max)
    }

    /// Says that the caller has taken entries of a run it asked, which lets its worker go on.
    pub fn taken(&self, seq: u64, output: bool) {
        let run = self.run;
        self.engine.apply(Event::Read { run, seq, output });
    }

    /// Waits until the journal has grown since this was last waited for.
    pub async fn grown(&mut self) {
        if self.grown.changed().await.is_err() {
            // Its bell is gone with the engine: nothing grows any more.
            std::future::pending().await
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let run = self.run;
        // Gone before it is looked who is left: two may leave at once.
        drop(std::mem::replace(&mut self.grown, watch::channel(()).1));
        self.engine
            .apply_with(Event::Watched { run, more: false }, |state| {
                let none_left = |bell: &watch::Sender<()>| bell.receiver_count() == 0;
                if state.watches.get(&run).is_some_and(none_left) {
                    state.watches.remove(&run);
                    trim(&mut state.watches);
                }
            });
    }
}
