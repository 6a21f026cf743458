//! A streamed ask: what happens until the reply.
//!
//! Owns [`Events`], which is pulled: nothing is read ahead of who polls it, so a slow reader slows
//! the agent. Output of an attempt that is over is dropped here.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use harness_proto::v1::ask_stream_response::Event as Wire;
use harness_proto::v1::{AskStreamRequest, AskStreamResponse};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Streaming};

use super::ask::{self, Ask, Streamed};
use super::runs::{Content, Entry};
use super::{Answer, Harness};
use crate::context::LogLevel;
use crate::error::{Error, ErrorKind};
use crate::payload::FromPayload;
use crate::wire;

/// The header that names the run.
const RUN_ID: &str = "harness-run-id";

/// What happens to a streamed ask. Output is read as `O`, the reply as `R`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<O, R> {
    /// A worker has the request, for the first time.
    AttemptStarted(AttemptStarted),
    /// Another attempt has begun: the output so far is void.
    Restarted(AttemptStarted),
    /// A piece of output.
    Output(O),
    /// How far the agent is.
    Progress {
        /// From 0.0 to 1.0.
        fraction: f64,
        /// One line for a person, may be empty.
        message: String,
    },
    /// A log line of the agent.
    Log {
        /// How much it matters.
        level: LogLevel,
        /// The line.
        message: String,
    },
    /// Entries were dropped because nobody read them in time.
    Gap {
        /// The number of the oldest one kept.
        first_kept: u64,
    },
    /// The reply; nothing follows.
    Reply(Answer<R>),
}

/// Who has the request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptStarted {
    /// Numbered from 1.
    pub attempt: u32,
    /// The worker's id, a UUID.
    pub worker_id: String,
    /// Its name.
    pub worker_name: String,
}

/// The events of a streamed ask, see [`Harness::ask_stream`]: in order, ending with
/// [`Event::Reply`] or an error. Dropping it hangs up, which cancels the run.
pub struct Events<O, R> {
    harness: Harness,
    agent: String,
    run_id: String,
    attempt: u32,
    /// None once the end was told.
    answers: Option<Streaming<AskStreamResponse>>,
    patience: Duration,
    expiry: Pin<Box<Sleep>>,
    types: PhantomData<fn() -> (O, R)>,
}

impl<O: FromPayload, R: FromPayload> Ask<(O, R), Streamed> {
    async fn open(self) -> Result<Events<O, R>, Error> {
        let (Streamed(harness), prepared) = self.prepare()?;
        let patience = prepared.patience();
        let expiry = Box::pin(tokio::time::sleep(patience));
        let agent = prepared.agent.clone();
        let mut request = Request::new(AskStreamRequest {
            agent: prepared.agent,
            payload: Some(prepared.payload),
            options: Some(prepared.options),
        });
        request.set_timeout(patience);
        let mut runs = harness.runs();
        let call = tokio::time::timeout(patience, harness.answered(runs.ask_stream(request)));
        let answers = call
            .await
            .unwrap_or_else(|_| Err(harness.unanswered(patience)))?;
        Ok(Events {
            run_id: run_id(answers.metadata()),
            harness,
            agent,
            attempt: 0,
            answers: Some(answers.into_inner()),
            patience,
            expiry,
            types: PhantomData,
        })
    }
}

fn run_id(metadata: &MetadataMap) -> String {
    let header = metadata.get(RUN_ID).and_then(|value| value.to_str().ok());
    header.unwrap_or_default().to_owned()
}

impl<O: FromPayload, R: FromPayload> Events<O, R> {
    /// The run, a UUIDv7 in its 36 character form.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The next event; None after the last. Can be dropped and called again.
    ///
    /// # Errors
    /// What an ask can end with; nothing follows one.
    pub async fn next(&mut self) -> Option<Result<Event<O, R>, Error>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event<O, R>, Error>>> {
        loop {
            let Some(answers) = &mut self.answers else {
                return Poll::Ready(None);
            };
            let told = match Pin::new(answers).poll_next(cx) {
                Poll::Ready(Some(Ok(answer))) => answer.event.and_then(|event| self.told(event)),
                Poll::Ready(Some(Err(status))) => Some(Err(self.harness.failed(status))),
                Poll::Ready(None) => Some(Err(Error::new(
                    ErrorKind::Transport,
                    "the harness ended the call without a reply",
                ))),
                Poll::Pending => {
                    ready!(self.expiry.as_mut().poll(cx));
                    Some(Err(self.harness.unanswered(self.patience)))
                }
            };
            if let Some(event) = told {
                if matches!(event, Ok(Event::Reply(_)) | Err(_)) {
                    self.answers = None;
                }
                return Poll::Ready(Some(event));
            }
        }
    }

    fn told(&mut self, event: Wire) -> Option<Result<Event<O, R>, Error>> {
        match event {
            Wire::Run(run) => {
                self.run_id = run.run_id;
                None
            }
            Wire::Entry(entry) => self.entry(wire::runs::entry(entry)),
            Wire::Gap(gap) => Some(Ok(Event::Gap {
                first_kept: gap.first_kept,
            })),
            Wire::Heartbeat(_) => None,
            Wire::Reply(reply) => {
                let run_id = std::mem::take(&mut self.run_id);
                let answer = ask::read(&self.agent, run_id, reply.attempt, reply.payload);
                Some(answer.map(Event::Reply))
            }
        }
    }

    fn entry(&mut self, entry: Entry) -> Option<Result<Event<O, R>, Error>> {
        if entry.attempt < self.attempt {
            return None;
        }
        Some(Ok(match entry.content {
            Content::AttemptStarted {
                worker_id,
                worker_name,
                ..
            } => {
                self.attempt = entry.attempt;
                let started = AttemptStarted {
                    attempt: entry.attempt,
                    worker_id,
                    worker_name,
                };
                match started.attempt {
                    1 => Event::AttemptStarted(started),
                    _ => Event::Restarted(started),
                }
            }
            Content::Output(payload) => match O::from_payload(payload) {
                Ok(output) => Event::Output(output),
                Err(why) => {
                    let agent = &self.agent;
                    let message = format!("output of {agent} is not of the type asked for: {why}");
                    let error = Error::new(ErrorKind::Decode, message);
                    return Some(Err(error.with_run(&self.run_id, entry.attempt)));
                }
            },
            Content::Progress { fraction, message } => Event::Progress { fraction, message },
            Content::Log { level, message } => Event::Log { level, message },
            Content::RunStarted { .. }
            | Content::AttemptEnded { .. }
            | Content::CancelRequested { .. }
            | Content::RunEnded { .. }
            | Content::AttemptStopping { .. }
            | Content::AttemptStopped { .. }
            | Content::Step { .. }
            | Content::Usage { .. }
            | Content::Unknown => return None,
        }))
    }
}

impl<O: FromPayload, R: FromPayload> Stream for Events<O, R> {
    type Item = Result<Event<O, R>, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_event(cx)
    }
}

impl<O: FromPayload + 'static, R: FromPayload + 'static> IntoFuture for Ask<(O, R), Streamed> {
    type Output = Result<Events<O, R>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl<O, R> fmt::Debug for Events<O, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("agent", &self.agent)
            .field("run_id", &self.run_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
