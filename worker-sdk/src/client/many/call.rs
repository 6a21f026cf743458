//! One AskMany call: what is open on it, and its reader.
//!
//! A tag is entered before its ask is queued and stays until the harness has answered it, cancelled
//! or not, as the window counts it so long. Tags are never used twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::ask_many_request::Frame as Out;
use harness_proto::v1::ask_many_response::Frame as In;
use harness_proto::v1::outcome::Outcome;
use tokio::sync::mpsc::WeakSender;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Status, Streaming};

use super::Harness;
use crate::connect::Address;
use crate::error::{Error, ErrorKind};
use crate::wire::status::{caller_error, error_of};

/// The window of a harness that names none.
const WINDOW: usize = 256;
/// How often it is looked for asks that the harness left unanswered.
const TICK: Duration = Duration::from_secs(1);

/// Run, attempt and reply of an ask, or why there is none.
pub(super) type Answered = Result<(String, u32, v1::Payload), Error>;

/// What is open on a call.
#[derive(Debug)]
pub(super) struct Open {
    room: Semaphore,
    window: usize,
    frames: WeakSender<v1::AskManyRequest>,
    tags: Mutex<Tags>,
}

#[derive(Debug, Default)]
struct Tags {
    newest: u64,
    open: HashMap<u64, Pending>,
    /// Why the call is over.
    ended: Option<Error>,
}

#[derive(Debug)]
struct Pending {
    /// None once nobody waits any more.
    answer: Option<oneshot::Sender<Answered>>,
    expires: Instant,
}

/// Where an ask that is open will be answered.
pub(super) struct Place<'a> {
    pub(super) tag: Tag<'a>,
    pub(super) answer: oneshot::Receiver<Answered>,
}

/// An open tag. Dropping it cancels the ask.
pub(super) struct Tag<'a> {
    open: &'a Open,
    number: u64,
}

impl Tag<'_> {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The ask was answered.
    pub(super) fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Tag<'_> {
    fn drop(&mut self) {
        self.open.cancel(self.number);
    }
}

impl Open {
    pub(super) fn new(window: usize, frames: WeakSender<v1::AskManyRequest>) -> Self {
        Self {
            room: Semaphore::new(window),
            window,
            frames,
            tags: Mutex::default(),
        }
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    fn tags(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for one ask if there is some. It is given back when its tag is answered.
    pub(super) fn try_room(&self) -> Result<bool, Error> {
        match self.room.try_acquire() {
            Ok(room) => {
                room.forget();
                Ok(true)
            }
            Err(TryAcquireError::NoPermits) => Ok(false),
            Err(TryAcquireError::Closed) => Err(self.ended()),
        }
    }

    /// Waits for room for one ask.
    pub(super) async fn room(&self) -> Result<(), Error> {
        match self.room.acquire().await {
            Ok(room) => {
                room.forget();
                Ok(())
            }
            Err(_) => Err(self.ended()),
        }
    }

    /// Opens a tag in the room that was taken.
    pub(super) fn enter(&self, patience: Duration) -> Result<Place<'_>, Error> {
        let (sender, answer) = oneshot::channel();
        let pending = Pending {
            answer: Some(sender),
            expires: Instant::now() + patience,
        };
        let mut tags = self.tags();
        if let Some(ended) = &tags.ended {
            return Err(ended.clone());
        }
        tags.newest += 1;
        let number = tags.newest;
        tags.open.insert(number, pending);
        drop(tags);
        let tag = Tag { open: self, number };
        Ok(Place { tag, answer })
    }

    /// Why the call is over.
    pub(super) fn ended(&self) -> Error {
        let ended = self.tags().ended.clone();
        ended.unwrap_or_else(|| over("the call has ended"))
    }

    /// Nobody waits for this answer any more; nothing when it was answered or given up.
    fn cancel(&self, tag: u64) {
        let mut tags = self.tags();
        let waiting = tags.open.get_mut(&tag).and_then(|it| it.answer.take());
        if waiting.is_some() {
            self.send_cancel(tag);
        }
    }

    /// Once for each tag.
    fn send_cancel(&self, tag: u64) {
        let Some(frames) = self.frames.upgrade() else {
            return;
        };
        let frame = Some(Out::Cancel(v1::CancelTag { tag }));
        // Never full; a call that has ended has cancelled everything.
        let _ = frames.try_send(v1::AskManyRequest { frame });
    }

    fn answered(&self, answer: v1::Answer) {
        let Some(pending) = self.tags().open.remove(&answer.tag) else {
            return;
        };
        self.room.add_permits(1);
        let Some(waiting) = pending.answer else {
            return;
        };
        let (run_id, attempt) = (answer.run_id, answer.attempt);
        let answered = match answer.outcome.and_then(|outcome| outcome.outcome) {
            Some(Outcome::Value(value)) => Ok((run_id, attempt, value)),
            Some(Outcome::Error(error)) => Err(error_of(error).with_run(&run_id, attempt)),
            None => Err(over("the answer says nothing").with_run(&run_id, attempt)),
        };
        // Who has just stopped waiting does not want it.
        let _ = waiting.send(answered);
    }

    /// Gives up what the harness should have answered by now.
    fn expire(&self, now: Instant) {
        let mut tags = self.tags();
        let late = |(tag, it): (&u64, &Pending)| (it.expires <= now).then_some(*tag);
        let late: Vec<u64> = tags.open.iter().filter_map(late).collect();
        for tag in late {
            let waiting = tags.open.get_mut(&tag).and_then(|it| it.answer.take());
            let Some(waiting) = waiting else { continue };
            let message = "the harness did not answer in time";
            let error = Error::new(ErrorKind::DeadlineExceeded, message);
            // Who has just stopped waiting does not want it.
            let _ = waiting.send(Err(error));
            self.send_cancel(tag);
        }
    }

    /// The call is over: so is every ask on it.
    fn end(&self, error: Error) {
        let mut tags = self.tags();
        let open = std::mem::take(&mut tags.open);
        tags.ended = Some(error.clone());
        drop(tags);
        self.room.close();
        for waiting in open.into_values().filter_map(|pending| pending.answer) {
            let _ = waiting.send(Err(error.clone()));
        }
    }
}

/// The window, which comes first.
pub(super) async fn window(
    harness: &Harness,
    answers: &mut Streaming<v1::AskManyResponse>,
) -> Result<usize, Error> {
    let first = answers.message().await;
    let first = first.map_err(|status| harness.failed(status))?;
    match first.and_then(|message| message.frame) {
        Some(In::Window(window)) if window.max_open > 0 => Ok(window.max_open as usize),
        Some(In::Window(_)) => Ok(WINDOW),
        Some(In::Answer(_)) | None => Err(over("the harness did not open the call as it should")),
    }
}

/// Reads the answers until the call is over.
pub(super) async fn read(
    open: Arc<Open>,
    mut answers: Streaming<v1::AskManyResponse>,
    address: Address,
) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = loop {
        tokio::select! {
            biased;
            message = answers.message() => match message {
                Ok(Some(message)) => match message.frame {
                    Some(In::Answer(answer)) => open.answered(answer),
                    Some(In::Window(_)) | None => {}
                },
                Ok(None) => break over("the harness has ended the call"),
                Err(status) => break broken(&address, status),
            },
            now = tick.tick() => open.expire(now),
        }
    };
    open.end(end);
}

fn broken(address: &Address, status: Status) -> Error {
    // The window has come, so something was heard.
    caller_error(address, true, status)
}

fn over(what: &str) -> Error {
    Error::new(ErrorKind::Transport, what)
}
