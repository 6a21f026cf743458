//! Durable runs over the bare wire: starting and following them, and what a worker writes.

use std::time::Duration;

use harness_proto::v1::{
    self, Append, Entry, JournalEntry, Request, Run, StartRunRequest, Step, StepKind,
    WatchRunRequest, attach_request, entry, outcome, watch_run_response,
};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::raw::{SOON, payload, runs, within};

/// A StartRun of an agent.
#[must_use]
pub fn start(agent: &str, json: &str) -> StartRunRequest {
    StartRunRequest {
        agent: agent.to_owned(),
        payload: Some(payload(json)),
        ..StartRunRequest::default()
    }
}

/// Starts a run, which must be taken soon.
pub async fn started(channel: &Channel, request: StartRunRequest) -> Run {
    let answer = within(SOON, runs(channel).start_run(request)).await;
    let run = answer.expect("the run is taken").into_inner().run;
    run.expect("a run")
}

/// Where a run stands.
pub async fn run_of(channel: &Channel, run_id: &str) -> Result<Run, Status> {
    let request = v1::GetRunRequest {
        run_id: run_id.to_owned(),
        ..v1::GetRunRequest::default()
    };
    let answer = within(SOON, runs(channel).get_run(request)).await?;
    Ok(answer.into_inner().run.expect("a run"))
}

/// Follows a run from a number on.
pub async fn watch(
    channel: &Channel,
    run_id: &str,
    from_seq: u64,
) -> Result<Streaming<v1::WatchRunResponse>, Status> {
    let request = WatchRunRequest {
        run_id: run_id.to_owned(),
        from_seq,
        ..WatchRunRequest::default()
    };
    let answer = within(SOON, runs(channel).watch_run(request)).await?;
    Ok(answer.into_inner())
}

/// The journal of a run from its beginning to its end, which must come within a bound.
pub async fn journal(channel: &Channel, run_id: &str, bound: Duration) -> Vec<JournalEntry> {
    let mut events = watch(channel, run_id, 1).await.expect("the run is known");
    let read = async {
        let mut entries = Vec::new();
        while let Some(event) = events.message().await.expect("no error") {
            match event.event.expect("a known event") {
                watch_run_response::Event::Entry(entry) => entries.push(entry),
                watch_run_response::Event::Heartbeat(_) => {}
                watch_run_response::Event::Gap(gap) => panic!("a gap on disk: {gap:?}"),
            }
        }
        entries
    };
    let entries = within(bound, read).await;
    let seqs: Vec<u64> = entries.iter().map(|entry| entry.seq).collect();
    let count = entries.len() as u64;
    assert_eq!(
        seqs,
        (1..=count).collect::<Vec<_>>(),
        "numbers without gaps"
    );
    entries
}

/// The kinds of entries, as their names on the wire.
#[must_use]
pub fn kinds(entries: &[JournalEntry]) -> Vec<&'static str> {
    let kind = |entry: &JournalEntry| match kind_of(entry) {
        Some(entry::Kind::RunStarted(_)) => "run_started",
        Some(entry::Kind::AttemptStarted(_)) => "attempt_started",
        Some(entry::Kind::AttemptEnded(_)) => "attempt_ended",
        Some(entry::Kind::CancelRequested(_)) => "cancel_requested",
        Some(entry::Kind::RunEnded(_)) => "run_ended",
        Some(entry::Kind::AttemptStopping(_)) => "attempt_stopping",
        Some(entry::Kind::AttemptStopped(_)) => "attempt_stopped",
        Some(entry::Kind::Output(_)) => "output",
        Some(entry::Kind::Progress(_)) => "progress",
        Some(entry::Kind::Log(_)) => "log",
        Some(entry::Kind::Step(_)) => "step",
        Some(entry::Kind::Usage(_)) => "usage",
        None => "unknown",
    };
    entries.iter().map(kind).collect()
}

/// What an entry says.
#[must_use]
pub fn kind_of(entry: &JournalEntry) -> Option<&entry::Kind> {
    entry.entry.as_ref().and_then(|entry| entry.kind.as_ref())
}

/// An append that records a step as done.
#[must_use]
pub fn step(request: &Request, worker_seq: u64, name: &str, json: &str) -> attach_request::Frame {
    let done = entry::Kind::Step(Step {
        name: name.to_owned(),
        key: "1".to_owned(),
        kind: StepKind::Done.into(),
        outcome: Some(v1::Outcome {
            outcome: Some(outcome::Outcome::Value(payload(json))),
        }),
        idempotency_key: format!("{}/{name}/1", request.run_id),
    });
    append(request, worker_seq, done)
}

/// An append of any kind.
#[must_use]
pub fn append(request: &Request, worker_seq: u64, kind: entry::Kind) -> attach_request::Frame {
    attach_request::Frame::Append(Append {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        worker_seq,
        entry: Some(Entry { kind: Some(kind) }),
    })
}

/// The value a run has ended with.
///
/// # Panics
/// When it has ended with none.
#[must_use]
pub fn value(run: &Run) -> String {
    match run.outcome.as_ref().and_then(|it| it.outcome.as_ref()) {
        Some(outcome::Outcome::Value(value)) => String::from_utf8_lossy(&value.data).into_owned(),
        other => panic!("no value: {other:?}"),
    }
}
