//! Following a run's journal.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use harness_proto::v1::watch_run_response::Event as Wire;
use harness_proto::v1::{WatchRunRequest, WatchRunResponse};
use serde::Serialize;
use tokio_stream::Stream;
use tonic::Streaming;

use super::Harness;
use super::runs::Entry;
use crate::error::Error;
use crate::wire;

/// A run about to be watched; `.await` begins. From its start and to its end unless it says
/// otherwise.
#[derive(Debug)]
#[must_use = "a watch begins when it is awaited"]
pub struct WatchRun {
    harness: Harness,
    request: WatchRunRequest,
}

impl WatchRun {
    pub(super) fn new(harness: Harness, namespace: &str, run_id: &str) -> Self {
        let request = WatchRunRequest {
            run_id: run_id.to_owned(),
            namespace: namespace.to_owned(),
            ..Default::default()
        };
        Self { harness, request }
    }

    /// The first entry wanted, numbered from 1. After a watch that broke, the last one told plus 1.
    pub fn from_seq(mut self, seq: u64) -> Self {
        self.request.from_seq = seq;
        self
    }

    /// Goes on after the run's end until its work has really stopped.
    pub fn include_stop(mut self) -> Self {
        self.request.include_stop = true;
        self
    }
}

impl IntoFuture for WatchRun {
    type Output = Result<Watch, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { harness, request } = self;
            let mut runs = harness.runs();
            let answers = harness.called(runs.watch_run(request)).await?;
            Ok(Watch {
                harness,
                answers: Some(answers),
            })
        })
    }
}

/// What a watch tells.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WatchEvent {
    /// The next entry.
    Entry(Entry),
    /// Entries are no longer kept.
    Gap {
        /// The number of the oldest one kept.
        first_kept: u64,
    },
}

/// The entries of a run as they are written, see [`Harness::watch_run`]. Dropping it stops the
/// watching and not the run.
pub struct Watch {
    harness: Harness,
    answers: Option<Streaming<WatchRunResponse>>,
}

impl Watch {
    /// The next event; None once the run has ended and all was told. Can be dropped and called
    /// again.
    ///
    /// # Errors
    /// `Transport` when the connection broke: watch again from the last entry on.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<WatchEvent, Error>>> {
        while let Some(answers) = &mut self.answers {
            let event = match ready!(Pin::new(answers).poll_next(cx)) {
                Some(Ok(answer)) => match answer.event {
                    Some(Wire::Entry(entry)) => WatchEvent::Entry(wire::runs::entry(entry)),
                    Some(Wire::Gap(gap)) => WatchEvent::Gap {
                        first_kept: gap.first_kept,
                    },
                    Some(Wire::Heartbeat(_)) | None => continue,
                },
                Some(Err(status)) => {
                    self.answers = None;
                    return Poll::Ready(Some(Err(self.harness.failed(status))));
                }
                None => {
                    self.answers = None;
                    break;
                }
            };
            return Poll::Ready(Some(Ok(event)));
        }
        Poll::Ready(None)
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_event(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
