//! Streamed asks and watched runs, from the caller's side.

use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::ask_stream_response::Event as Wire;
use harness_proto::v1::entry::Kind;
use harness_proto::v1::watch_run_response::Event as Watched;
use tokio::sync::mpsc;
use tonic::Status;
use worker_sdk::client::runs::{Content, Outcome, RunState};
use worker_sdk::client::{Event, Events, WatchEvent};
use worker_sdk::{ErrorKind, Harness};

use crate::fake::{Fake, Told, within};

type Answers = mpsc::Sender<Result<v1::AskStreamResponse, Status>>;

fn payload(json: &'static str) -> v1::Payload {
    v1::Payload {
        content_type: String::new(),
        data: json.into(),
    }
}

fn entry(seq: u64, attempt: u32, kind: Kind) -> v1::JournalEntry {
    v1::JournalEntry {
        seq,
        attempt,
        time: None,
        entry: Some(v1::Entry { kind: Some(kind) }),
    }
}

fn output(json: &'static str) -> Kind {
    Kind::Output(v1::Output {
        payload: Some(payload(json)),
    })
}

fn started(worker: &str) -> Kind {
    Kind::AttemptStarted(v1::AttemptStarted {
        worker_name: worker.to_owned(),
        ..Default::default()
    })
}

async fn tell(answers: &Answers, event: Wire) {
    let answer = v1::AskStreamResponse { event: Some(event) };
    within("room", answers.send(Ok(answer))).await.unwrap();
}

/// An open stream of numbers that ends with a text, and the hand that feeds it.
async fn open(timeout: Duration) -> (Fake, Answers, Events<u32, String>) {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let ask = harness
        .ask_stream::<u32, String>("count", &3)
        .timeout(timeout);
    let events = within("headers", ask.into_future()).await.unwrap();
    let Some(Told::Stream(request, answers)) = fake.told.recv().await else {
        panic!("a streamed ask")
    };
    assert_eq!(request.agent, "count");
    (fake, answers, events)
}

async fn next(events: &mut Events<u32, String>) -> Event<u32, String> {
    within("event", events.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_stream_tells_what_happens_and_then_the_reply() {
    let (_fake, answers, mut events) = open(Duration::from_secs(60)).await;
    assert_eq!(events.run_id(), "the run");
    let feed = async {
        let run_id = "the run".to_owned();
        tell(&answers, Wire::Run(v1::RunAccepted { run_id })).await;
        tell(&answers, Wire::Entry(entry(1, 1, started("w")))).await;
        tell(&answers, Wire::Entry(entry(2, 1, output("7")))).await;
        let progress = v1::Progress {
            fraction: 0.5,
            message: "half".to_owned(),
        };
        tell(&answers, Wire::Entry(entry(3, 1, Kind::Progress(progress)))).await;
        tell(&answers, Wire::Heartbeat(v1::StreamHeartbeat { head: 3 })).await;
        tell(&answers, Wire::Gap(v1::Gap { first_kept: 9 })).await;
        let reply = v1::StreamReply {
            payload: Some(payload("\"done\"")),
            attempt: 1,
        };
        tell(&answers, Wire::Reply(reply)).await;
    };
    let read = async {
        let begun = next(&mut events).await;
        assert!(matches!(begun, Event::AttemptStarted(it) if it.worker_name == "w"));
        assert!(matches!(next(&mut events).await, Event::Output(7)));
        let half = next(&mut events).await;
        assert!(matches!(half, Event::Progress { fraction, .. } if fraction == 0.5));
        assert!(matches!(
            next(&mut events).await,
            Event::Gap { first_kept: 9 }
        ));
        let Event::Reply(answer) = next(&mut events).await else {
            panic!("the reply is last")
        };
        assert_eq!(
            (answer.run_id.as_str(), answer.value.as_str()),
            ("the run", "done")
        );
        assert!(events.next().await.is_none());
    };
    tokio::join!(feed, read);
}

#[tokio::test]
async fn output_of_an_attempt_that_is_over_is_dropped_and_the_restart_told() {
    let (_fake, answers, mut events) = open(Duration::from_secs(60)).await;
    let feed = async {
        tell(&answers, Wire::Entry(entry(1, 1, output("1")))).await;
        tell(&answers, Wire::Entry(entry(2, 2, started("other")))).await;
        tell(&answers, Wire::Entry(entry(3, 1, output("2")))).await;
        tell(&answers, Wire::Entry(entry(4, 2, output("3")))).await;
    };
    let read = async {
        assert!(matches!(next(&mut events).await, Event::Output(1)));
        let again = next(&mut events).await;
        assert!(matches!(again, Event::Restarted(it) if it.attempt == 2));
        assert!(matches!(next(&mut events).await, Event::Output(3)));
    };
    tokio::join!(feed, read);
}

#[tokio::test]
async fn dropping_a_stream_hangs_up() {
    let (_fake, answers, events) = open(Duration::from_secs(60)).await;
    drop(events);
    within("hang-up", answers.closed()).await;
}

#[tokio::test]
async fn a_stream_that_ends_without_a_reply_or_goes_quiet_is_an_error() {
    let (_fake, answers, mut events) = open(Duration::from_secs(60)).await;
    drop(answers);
    let error = within("end", events.next()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transport);
    assert!(events.next().await.is_none());

    let (_fake, answers, mut events) = open(Duration::from_millis(10)).await;
    let error = within("end", events.next()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    drop(answers);
}

#[tokio::test]
async fn output_of_another_type_is_a_decode_error_and_hangs_up() {
    let (_fake, answers, mut events) = open(Duration::from_secs(60)).await;
    tell(&answers, Wire::Entry(entry(1, 1, output("\"text\"")))).await;
    let error = within("end", events.next()).await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.run_id()),
        (ErrorKind::Decode, "the run")
    );
    within("hang-up", answers.closed()).await;
}

fn run() -> v1::Run {
    let told = v1::Error {
        code: v1::ErrorCode::Cancelled.into(),
        message: "by anonymous".to_owned(),
        ..Default::default()
    };
    v1::Run {
        run_id: "id".to_owned(),
        state: v1::RunState::Cancelled.into(),
        create_time: Some(prost_types::Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        }),
        outcome: Some(v1::Outcome {
            outcome: Some(v1::outcome::Outcome::Error(told)),
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_run_is_told_as_plain_types_that_serialize() {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let answering = async {
        let Some(Told::Get(request, answer)) = fake.told.recv().await else {
            panic!("GetRun")
        };
        assert_eq!(
            (request.run_id.as_str(), request.namespace.as_str()),
            ("id", "space")
        );
        answer.send(run()).unwrap();
        let Some(Told::Cancel(request, answer)) = fake.told.recv().await else {
            panic!("CancelRun")
        };
        assert_eq!(
            (request.run_id.as_str(), request.reason.as_str()),
            ("id", "enough")
        );
        answer.send(run()).unwrap();
    };
    let asking = async {
        let told = harness.run("space", "id").await.unwrap();
        assert_eq!(told.state, RunState::Cancelled);
        let Some(Outcome::Error(error)) = &told.outcome else {
            panic!("{told:?}")
        };
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        let json = serde_json::to_value(&told).unwrap();
        assert_eq!(json["state"], "CANCELLED");
        assert_eq!(json["create_time"], "2023-11-14T22:13:20Z");
        assert_eq!(json["outcome"]["error"]["code"], "CANCELLED");
        harness.cancel_run("", "id", "enough").await.unwrap();
    };
    tokio::join!(answering, asking);
}

#[tokio::test]
async fn a_watch_tells_entries_until_the_run_has_ended() {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let watch = harness.watch_run("", "id").from_seq(3).include_stop();
    let mut watch = within("headers", watch.into_future()).await.unwrap();
    let Some(Told::Watch(request, answers)) = fake.told.recv().await else {
        panic!("WatchRun")
    };
    assert_eq!((request.from_seq, request.include_stop), (3, true));
    let events = [
        Watched::Gap(v1::Gap { first_kept: 4 }),
        Watched::Heartbeat(v1::StreamHeartbeat { head: 4 }),
        Watched::Entry(entry(4, 1, output("{\"b\":1.50}"))),
    ];
    let feed = async move {
        for event in events {
            let answer = v1::WatchRunResponse { event: Some(event) };
            answers.send(Ok(answer)).await.unwrap();
        }
    };
    let read = async {
        let gap = within("gap", watch.next()).await.unwrap().unwrap();
        assert!(matches!(gap, WatchEvent::Gap { first_kept: 4 }));
        let told = within("entry", watch.next()).await.unwrap().unwrap();
        let json = serde_json::to_string(&told).unwrap();
        assert!(json.contains(r#"{"output":{"b":1.50}}"#), "{json}");
        assert!(matches!(told, WatchEvent::Entry(it) if matches!(it.content, Content::Output(_))));
        assert!(within("end", watch.next()).await.is_none());
    };
    tokio::join!(feed, read);
}
