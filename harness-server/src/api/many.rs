//! Many asks on one call: a window of open ones, answered in the order they complete.
//!
//! A place in the bounded channel of answers is reserved before an ask is made, so every ask has
//! room for its one answer, and a caller that does not read is not read from either.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::mpsc::{self, OwnedPermit};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use harness_proto::relay::{
    self, ask_many_request::Frame as In, ask_many_response::Frame as Out, outcome,
};

use crate::engine::{ManyAnswer, Tagged};
use crate::envelope::{Answer, Code, Failure};
use crate::ids::RunId;

use super::admission::{Admission, Ask, Call};
use super::{convert, status};

/// When to ask again beyond the window.
const WINDOW_RETRY: std::time::Duration = std::time::Duration::from_millis(10);

/// The open asks of one call, by tag. Dropping them cancels them.
struct Open {
    admission: Admission,
    runs: Mutex<HashMap<u64, RunId>>,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, RunId>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let runs = std::mem::take(&mut *self.lock());
        for run in runs.into_values() {
            self.admission.engine().hung_up(run);
        }
    }
}

/// The answers to the asks that come in. Half-closing lets those that are open finish; dropping
/// the answers cancels them. The second part reads the call and is to be run beside.
pub(super) fn serve(
    admission: Admission,
    call: Call,
    inbound: impl Stream<Item = Result<relay::AskManyRequest, Status>> + Send + Unpin + 'static,
) -> (
    impl Stream<Item = Result<relay::AskManyResponse, Status>> + Send + 'static,
    impl Future<Output = ()> + Send + 'static,
) {
    let max_open = admission.engine().limits().many_window;
    let (answers, answered) = mpsc::channel(max_open as usize + 1);
    let open = Arc::new(Open {
        admission: admission.clone(),
        runs: Mutex::default(),
    });
    let asking = Asking {
        admission,
        open: Arc::downgrade(&open),
        call,
        window: max_open as usize,
    };
    let window = tokio_stream::once(Ok(Out::Window(relay::Window { max_open })));
    let answers_out = ReceiverStream::new(answered).map(move |answer: ManyAnswer| match answer {
        Ok(tagged) => {
            // An ask whose run was never made is not among them.
            if tagged.run.is_some() {
                open.lock().remove(&tagged.tag);
            }
            Ok(Out::Answer(answer_to_proto(tagged)))
        }
        Err(failure) => Err(status::of_failure(&failure)),
    });
    let frames = window
        .chain(answers_out)
        .map(|frame| frame.map(|frame| relay::AskManyResponse { frame: Some(frame) }));
    (frames, asking.run(inbound, answers))
}

/// The reading half of a call.
struct Asking {
    admission: Admission,
    open: Weak<Open>,
    call: Call,
    window: usize,
}

impl Asking {
    async fn run<S>(self, mut inbound: S, answers: mpsc::Sender<ManyAnswer>)
    where
        S: Stream<Item = Result<relay::AskManyRequest, Status>> + Unpin,
    {
        loop {
            // A call that has ended takes no answer and has no place to reserve.
            let Ok(place) = answers.clone().reserve_owned().await else {
                return;
            };
            let frame = loop {
                let message = tokio::select! {
                    message = inbound.next() => message,
                    () = answers.closed() => return,
                };
                match message {
                    Some(Ok(message)) => match message.frame {
                        Some(In::Cancel(cancel)) => self.cancel(cancel.tag),
                        frame => break frame,
                    },
                    Some(Err(_)) | None => return,
                }
            };
            self.admission.turn().await;
            let Some(open) = self.open.upgrade() else {
                return;
            };
            let refusal = match frame {
                Some(In::Ask(ask)) => match self.ask(&open, ask, place) {
                    Ok(()) => continue,
                    Err(end) => end,
                },
                Some(In::Cancel(_)) | None => (
                    place,
                    Box::new(Failure::new(
                        Code::InvalidRequest,
                        "a frame must set one of ask and cancel",
                    )),
                ),
            };
            let (place, failure) = refusal;
            place.send(Err(failure));
            return;
        }
    }

    fn cancel(&self, tag: u64) {
        let run = self.open.upgrade().and_then(|open| {
            let run = open.lock().get(&tag).copied();
            run.map(|run| (open, run))
        });
        if let Some((open, run)) = run {
            open.admission.engine().hung_up(run);
        }
    }

    /// Makes one ask, or gives back its place and why the call ends.
    fn ask(
        &self,
        open: &Open,
        ask: relay::TaggedAsk,
        place: OwnedPermit<ManyAnswer>,
    ) -> Result<(), (OwnedPermit<ManyAnswer>, Box<Failure>)> {
        let tag = ask.tag;
        // Held until the run is entered, so that its answer finds it.
        let mut runs = open.lock();
        let count = runs.len();
        let entry = match runs.entry(tag) {
            Entry::Occupied(_) => {
                let message =
                    format!("tag {tag} is still open: use another, or wait for its answer");
                return Err((place, Box::new(Failure::new(Code::InvalidRequest, message))));
            }
            Entry::Vacant(entry) => entry,
        };
        if count >= self.window {
            let message = format!("{count} asks are open on this call, which is its window");
            refuse(
                place,
                tag,
                Failure::new(Code::Busy, message).retry_after(WINDOW_RETRY),
            );
            return Ok(());
        }
        let ask = Ask {
            agent: ask.agent,
            payload: ask.payload,
            options: ask.options,
        };
        match open.admission.admit(ask, self.call.clone()) {
            Ok(admitted) => {
                entry.insert(open.admission.engine().ask_tagged(
                    (place, tag),
                    admitted.request,
                    admitted.terms,
                    admitted.placing,
                ));
            }
            Err(failure) => refuse(place, tag, *failure),
        }
        Ok(())
    }
}

fn refuse(place: OwnedPermit<ManyAnswer>, tag: u64, failure: Failure) {
    let answer = Answer {
        attempt: failure.attempt,
        outcome: Err(Box::new(failure)),
    };
    place.send(Ok(Tagged {
        tag,
        run: None,
        answer,
    }));
}

fn answer_to_proto(tagged: Tagged) -> relay::Answer {
    relay::Answer {
        tag: tagged.tag,
        run_id: tagged.run.map(|run| run.to_string()).unwrap_or_default(),
        attempt: tagged.answer.attempt.0,
        outcome: Some(relay::Outcome {
            outcome: Some(match tagged.answer.outcome {
                Ok(value) => outcome::Outcome::Value(convert::payload_to_proto(value)),
                Err(failure) => outcome::Outcome::Error(convert::error_to_proto(&failure)),
            }),
        }),
    }
}
