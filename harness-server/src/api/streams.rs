//! Streamed answers: an ask with its entries on the way, and the journal of any run.
//!
//! A stream is pulled: what its caller does not read is not taken, and a paced run's worker then
//! waits. Nothing is spawned.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::stream::unfold;
use tokio::time::sleep;
use tokio_stream::Stream;
use tonic::Status;

use harness_proto::relay::{
    self, ask_stream_response::Event as AskEvent, watch_run_response::Event as WatchEvent,
};

use crate::engine::{Asked, Engine, Followed, Watch};
use crate::envelope::{Answer, Code};
use crate::journal::{Content, Entry};
use crate::store;

use super::admission::CountHangUp;
use super::{convert, entries, status};

/// Entries read at once.
const PAGE: usize = 64;

/// A stream of answers.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A cursor in a journal.
struct Reader {
    engine: Engine,
    watch: Watch,
    next: u64,
    page: VecDeque<Entry>,
}

/// What a reader comes upon.
enum Found {
    Entry(Entry),
    Gap(u64),
    Ended { stopped: bool },
    Quiet(u64),
    Gone,
}

impl Reader {
    fn new(engine: Engine, watch: Watch, from: u64) -> Self {
        Self {
            engine,
            watch,
            next: from.max(1),
            page: VecDeque::new(),
        }
    }

    /// The next entry, or what there is instead; waits for one at most a heartbeat's time.
    async fn next(&mut self) -> Found {
        loop {
            if let Some(entry) = self.page.front()
                && entry.seq > self.next
            {
                self.next = entry.seq;
                return Found::Gap(self.next);
            }
            if let Some(entry) = self.page.pop_front() {
                self.next = entry.seq + 1;
                return Found::Entry(entry);
            }
            let Some(reading) = self.watch.read(self.next, PAGE) else {
                return Found::Gone;
            };
            let head = reading.page.head;
            self.page = reading.page.entries.into();
            if !self.page.is_empty() {
                continue;
            }
            if head >= self.next {
                self.next = head + 1;
                return Found::Gap(self.next);
            }
            if reading.ended {
                return Found::Ended {
                    stopped: reading.stopped,
                };
            }
            if !self.grown().await {
                return Found::Quiet(head);
            }
        }
    }

    /// Waits for more; false when none came in a heartbeat's time.
    async fn grown(&mut self) -> bool {
        tokio::select! {
            () = self.watch.grown() => true,
            () = sleep(self.engine.limits().stream_heartbeat) => false,
        }
    }
}

/// A streamed ask under way.
struct Asking {
    reader: Reader,
    asked: Option<Asked>,
    hung_up: Option<CountHangUp>,
    announced: bool,
    /// The entry handed out last; it is taken when the next one is asked for.
    handed: Option<(u64, bool)>,
}

/// The answers of a streamed ask. Dropping them hangs up.
pub(super) fn ask(
    engine: Engine,
    asked: Asked,
    watch: Watch,
    hung_up: CountHangUp,
) -> Answers<relay::AskStreamResponse> {
    let asking = Asking {
        reader: Reader::new(engine, watch, 1),
        asked: Some(asked),
        hung_up: Some(hung_up),
        announced: false,
        handed: None,
    };
    Box::pin(unfold(asking, |mut asking| async move {
        let event = asking.next().await?;
        let answer = event.map(|event| relay::AskStreamResponse { event: Some(event) });
        Some((answer, asking))
    }))
}

impl Asking {
    async fn next(&mut self) -> Option<Result<AskEvent, Status>> {
        if let Some((seq, output)) = self.handed.take() {
            self.reader.watch.taken(seq, output);
        }
        if !std::mem::replace(&mut self.announced, true) {
            let run_id = self.reader.watch.run().to_string();
            return Some(Ok(AskEvent::Run(relay::RunAccepted { run_id })));
        }
        loop {
            match self.reader.next().await {
                // The reply that follows says the same, with its payload.
                Found::Entry(entry) if matches!(entry.content, Content::RunEnded(_)) => {}
                Found::Entry(entry) => {
                    self.handed = Some((entry.seq, entries::is_output(&entry.content)));
                    let entry = entries::entry_to_proto(&self.reader.engine, entry);
                    return Some(Ok(AskEvent::Entry(entry)));
                }
                Found::Gap(first_kept) => {
                    return Some(Ok(AskEvent::Gap(relay::Gap { first_kept })));
                }
                Found::Quiet(head) => {
                    return Some(Ok(AskEvent::Heartbeat(relay::StreamHeartbeat { head })));
                }
                Found::Ended { .. } | Found::Gone => {
                    let answer = self.asked.take()?.answer().await;
                    if let Some(hung_up) = self.hung_up.take() {
                        hung_up.answered();
                    }
                    return Some(reply(answer));
                }
            }
        }
    }
}

fn reply(answer: Answer) -> Result<AskEvent, Status> {
    match answer.outcome {
        Ok(value) => Ok(AskEvent::Reply(relay::StreamReply {
            payload: Some(convert::payload_to_proto(value)),
            attempt: answer.attempt.0,
        })),
        Err(failure) => Err(status::of_failure(&failure)),
    }
}

/// A durable run's journal under way.
struct Following {
    engine: Engine,
    followed: Followed,
    page: VecDeque<store::Entry>,
}

/// The journal of a durable run from a number on; what is not on disk is not told.
pub(super) fn follow(
    engine: Engine,
    followed: Followed,
    include_stop: bool,
) -> Answers<relay::WatchRunResponse> {
    let following = Following {
        engine,
        followed: followed.including_stop(include_stop),
        page: VecDeque::new(),
    };
    Box::pin(unfold(following, |mut following| async move {
        let event = following.next().await?;
        let answer = event.map(|event| relay::WatchRunResponse { event: Some(event) });
        Some((answer, following))
    }))
}

impl Following {
    async fn next(&mut self) -> Option<Result<WatchEvent, Status>> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Some(Ok(WatchEvent::Entry(convert::entry_to_proto(entry))));
            }
            let page = match self.followed.next().await {
                Ok(page) => page,
                Err(failure) => return Some(Err(status::of_failure(&failure))),
            };
            let head = page.head;
            if head == 0 {
                let message = "the run is not kept any longer";
                return Some(Err(status::refused(Code::RunNotFound, message)));
            }
            self.page = page.entries.into();
            if !self.page.is_empty() {
                continue;
            }
            if page.ended {
                return None;
            }
            let quiet = sleep(self.engine.limits().stream_heartbeat);
            tokio::select! {
                () = self.followed.grown() => {}
                () = quiet => {
                    return Some(Ok(WatchEvent::Heartbeat(relay::StreamHeartbeat { head })));
                }
            }
        }
    }
}

/// The journal of a run from a number on.
pub(super) fn watch(
    engine: Engine,
    watch: Watch,
    from: u64,
    include_stop: bool,
) -> Answers<relay::WatchRunResponse> {
    let reader = Reader::new(engine, watch, from);
    Box::pin(unfold(reader, move |mut reader| async move {
        let event = loop {
            match reader.next().await {
                Found::Entry(entry) => {
                    let entry = entries::entry_to_proto(&reader.engine, entry);
                    break Ok(WatchEvent::Entry(entry));
                }
                Found::Gap(first_kept) => break Ok(WatchEvent::Gap(relay::Gap { first_kept })),
                Found::Quiet(head) => {
                    break Ok(WatchEvent::Heartbeat(relay::StreamHeartbeat { head }));
                }
                Found::Ended { stopped: false } if include_stop => {
                    if !reader.grown().await {
                        let head = reader.next.saturating_sub(1);
                        break Ok(WatchEvent::Heartbeat(relay::StreamHeartbeat { head }));
                    }
                }
                Found::Ended { .. } => return None,
                Found::Gone => {
                    break Err(status::refused(
                        Code::RunNotFound,
                        "the run is not kept any longer",
                    ));
                }
            }
        };
        let answer = event.map(|event| relay::WatchRunResponse { event: Some(event) });
        Some((answer, reader))
    }))
}
