//! What a caller can learn of runs and do about them: streamed asks, where a run stands, its
//! journal, its cancellation.

use std::time::Duration;

use harness_proto::v1::{
    AskStreamRequest, CancelRunRequest, Error, GetRunRequest, Run, WatchRunRequest,
    ask_stream_response, entry, outcome, watch_run_response,
};
use serde_json::Value;
use tonic::{Status, Streaming};

use super::Asker;
use crate::raw::{self, SOON, within};

/// A streamed ask. Nothing is read but by its methods; dropping it hangs up.
pub struct Stream<'a> {
    asker: &'a Asker,
    run_id: String,
    answers: Streaming<harness_proto::v1::AskStreamResponse>,
}

impl Asker {
    /// Asks with AskStream and reads no further than the run's id.
    ///
    /// # Panics
    /// When that does not come soon.
    #[track_caller]
    pub fn stream(&self, payload: &Value, timeout: Duration) -> Stream<'_> {
        let request = self.request(&payload.to_string(), timeout);
        let request = AskStreamRequest {
            agent: request.agent,
            payload: request.payload,
            options: request.options,
        };
        let mut client = raw::runs(&self.channel);
        let opened = async {
            let mut answers = within(SOON, client.ask_stream(request))
                .await
                .expect("the call opens")
                .into_inner();
            let first = within(SOON, answers.message()).await.expect("no error");
            (first.expect("the run comes first").event, answers)
        };
        let (first, answers) = self.runtime.block_on(opened);
        let Some(ask_stream_response::Event::Run(run)) = first else {
            panic!("the run comes first, not {first:?}")
        };
        Stream {
            asker: self,
            run_id: run.run_id,
            answers,
        }
    }

    /// Where a run stands.
    ///
    /// # Panics
    /// When the harness does not know it.
    #[track_caller]
    pub fn run(&self, run_id: &str) -> Run {
        let request = GetRunRequest {
            run_id: run_id.to_owned(),
            ..GetRunRequest::default()
        };
        let mut client = raw::runs(&self.channel);
        let told = self.runtime.block_on(within(SOON, client.get_run(request)));
        let run = told.expect("the harness knows the run").into_inner().run;
        run.expect("a run")
    }

    /// Asks for a run's cancellation; gives the run as it is then.
    ///
    /// # Panics
    /// When the harness does not know it.
    #[track_caller]
    pub fn cancel(&self, run_id: &str, reason: &str) -> Run {
        let request = CancelRunRequest {
            run_id: run_id.to_owned(),
            reason: reason.to_owned(),
            ..CancelRunRequest::default()
        };
        let mut client = raw::runs(&self.channel);
        let told = self
            .runtime
            .block_on(within(SOON, client.cancel_run(request)));
        let run = told.expect("the harness knows the run").into_inner().run;
        run.expect("a run")
    }

    /// The journal of a run that has ended: the kinds of its entries in order, and whether some
    /// were dropped.
    ///
    /// # Panics
    /// When it does not end soon.
    #[track_caller]
    pub fn journal(&self, run_id: &str) -> (Vec<entry::Kind>, bool) {
        let mut entries = self.watch(run_id);
        let (mut kinds, mut gap) = (Vec::new(), false);
        self.runtime.block_on(async {
            while let Some(told) = within(SOON, entries.message()).await.expect("no error") {
                match told.event.expect("a known event") {
                    watch_run_response::Event::Entry(told) => {
                        kinds.extend(told.entry.and_then(|entry| entry.kind));
                    }
                    watch_run_response::Event::Gap(_) => gap = true,
                    watch_run_response::Event::Heartbeat(_) => {}
                }
            }
        });
        (kinds, gap)
    }

    /// Watches a run from its beginning and reads nothing.
    ///
    /// # Panics
    /// When the harness does not know it.
    #[track_caller]
    pub fn watch(&self, run_id: &str) -> Streaming<harness_proto::v1::WatchRunResponse> {
        let request = WatchRunRequest {
            run_id: run_id.to_owned(),
            ..WatchRunRequest::default()
        };
        let mut client = raw::runs(&self.channel);
        let told = self
            .runtime
            .block_on(within(SOON, client.watch_run(request)));
        told.expect("the harness knows the run").into_inner()
    }
}

impl Stream<'_> {
    /// The run it is about.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Reads to the end: the pieces of output as JSON, and what came of the ask.
    ///
    /// # Panics
    /// When nothing comes for long.
    #[track_caller]
    pub fn rest(mut self) -> (Vec<Value>, Result<Value, Status>) {
        let mut pieces = Vec::new();
        let parse = |data: &[u8]| serde_json::from_slice(data).expect("JSON");
        let ended = self.asker.runtime.block_on(async {
            loop {
                let answer = match within(SOON, self.answers.message()).await {
                    Ok(answer) => answer.expect("a reply comes before the end"),
                    Err(status) => return Err(status),
                };
                match answer.event.expect("a known event") {
                    ask_stream_response::Event::Entry(told) => {
                        let kind = told.entry.and_then(|entry| entry.kind);
                        if let Some(entry::Kind::Output(output)) = kind {
                            pieces.push(parse(&output.payload.expect("a payload").data));
                        }
                    }
                    ask_stream_response::Event::Reply(reply) => {
                        return Ok(parse(&reply.payload.expect("a payload").data));
                    }
                    ask_stream_response::Event::Gap(gap) => panic!("lost output: {gap:?}"),
                    ask_stream_response::Event::Run(_)
                    | ask_stream_response::Event::Heartbeat(_) => {}
                }
            }
        });
        (pieces, ended)
    }
}

/// The error a run ended with.
///
/// # Panics
/// When it has none.
#[track_caller]
pub fn error_of(run: &Run) -> &Error {
    match run
        .outcome
        .as_ref()
        .and_then(|outcome| outcome.outcome.as_ref())
    {
        Some(outcome::Outcome::Error(error)) => error,
        other => panic!("no error: {other:?}"),
    }
}
