//! The SDK's client against a real harness and a real worker: streams, many, and runs by their id.
//! On several threads, for the tests wait for processes by blocking.

use std::future::IntoFuture;
use std::time::Duration;

use harness_tests::raw::within;
use harness_tests::{BOUND, Harness as Server, Worker};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use worker_sdk::client::runs::{Content, Outcome, RunState};
use worker_sdk::client::{Event, RetryPolicy, WatchEvent};
use worker_sdk::{Answer, Error, ErrorKind, Harness};

async fn connect(server: &Server) -> Harness {
    within(BOUND, Harness::connect(server.address()))
        .await
        .expect("it listens")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_gives_every_piece_and_the_reply() {
    let server = Server::start();
    let _puppet = Worker::puppet().start(&server);
    let harness = connect(&server).await;
    let order = json!({"do": "output", "count": 200});
    let mut events = harness
        .ask_stream::<u64, u64>("puppet", order)
        .await
        .expect("taken");
    let run_id = events.run_id().to_owned();
    assert_eq!(run_id.len(), 36);
    let mut pieces = Vec::new();
    let answer = loop {
        match within(BOUND, events.next())
            .await
            .expect("not the end")
            .expect("an event")
        {
            Event::Output(piece) => pieces.push(piece),
            Event::Reply(answer) => break answer,
            Event::AttemptStarted(started) => assert_eq!(started.attempt, 1),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(pieces, (1..=200).collect::<Vec<_>>());
    assert_eq!((answer.value, answer.run_id), (200, run_id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_dropped_or_tried_again_ends_the_first_attempt() {
    let server = Server::start();
    let mut puppet = Worker::puppet().start(&server);
    let harness = connect(&server).await;
    let order = json!({"do": "flaky", "failures": 2});
    let policy = RetryPolicy::attempts(3)
        .backoff(Duration::from_millis(1), Duration::from_millis(5))
        .never_after("Other");
    let ask = harness.ask_stream::<Value, u32>("puppet", order);
    let mut events = ask.retry(policy).await.expect("taken");
    let mut restarts = Vec::new();
    let answer = loop {
        match within(BOUND, events.next())
            .await
            .expect("not the end")
            .expect("an event")
        {
            Event::Restarted(started) => restarts.push(started.attempt),
            Event::Reply(answer) => break answer,
            _ => {}
        }
    };
    assert_eq!((restarts, answer.value), (vec![2, 3], 3));

    let hang = json!({"do": "output", "count": 1, "hang": true});
    let ask = harness.ask_stream::<u64, u64>("puppet", hang);
    let mut events = ask.await.expect("taken");
    while !matches!(
        within(BOUND, events.next()).await,
        Some(Ok(Event::Output(1)))
    ) {}
    drop(events);
    puppet.process().wait_for_line("dropped ");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_asks_than_the_window_share_one_call() {
    let server = Server::builder()
        .config("[limits]\nmany_window = 4\n")
        .start();
    let _puppet = Worker::puppet().slots(2).start(&server);
    let harness = connect(&server).await;
    let many = harness.ask_many().await.expect("opened");
    assert_eq!(many.window(), 4);
    let mut asking: JoinSet<Result<Answer<u64>, Error>> = JoinSet::new();
    for number in 0..100 {
        let order = json!({"do": "reply", "value": number});
        asking.spawn(many.ask("puppet", order).into_future());
    }
    let mut sum = 0;
    while let Some(answered) = within(BOUND, asking.join_next()).await {
        sum += answered.expect("no panic").expect("a reply").value;
    }
    assert_eq!(sum, 4950);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_an_ask_of_many_stops_its_work_alone() {
    let server = Server::start();
    let mut puppet = Worker::puppet().slots(2).start(&server);
    let harness = connect(&server).await;
    let many = harness.ask_many().await.expect("opened");
    let wait = many.ask::<Value>("puppet", json!({"do": "wait", "ms": 300}));
    let wait = tokio::spawn(wait.into_future());
    let hang = tokio::spawn(
        many.ask::<Value>("puppet", json!({"do": "hang"}))
            .into_future(),
    );
    server.wait_for_busy("puppet", 2);
    hang.abort();
    puppet.process().wait_for_line("dropped ");
    let answer = within(BOUND, wait).await.expect("no panic");
    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_seen_watched_and_cancelled_by_its_id() {
    let server = Server::start();
    let mut puppet = Worker::puppet().start(&server);
    let harness = connect(&server).await;
    let hang = harness.ask::<Value>("puppet", json!({"do": "hang"}));
    let asking = tokio::spawn(hang.into_future());
    let line = puppet.process().wait_for_line("started ");
    let run_id = line.rsplit(' ').next().expect("a run");
    let run = harness.run("", run_id).await.expect("known");
    assert_eq!((run.state, run.attempt), (RunState::Running, 1));
    assert!(run.outcome.is_none() && run.create_time < run.deadline);

    let watch = harness.watch_run("", run_id).from_seq(2).include_stop();
    let mut watch = watch.await.expect("known");
    let run = harness.cancel_run("", run_id, "enough").await;
    assert_eq!(run.expect("known").state, RunState::Cancelled);
    let mut told = Vec::new();
    while let Some(event) = within(BOUND, watch.next()).await {
        match event.expect("an event") {
            WatchEvent::Entry(entry) => told.push(entry),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told[0].seq, 2);
    let reason = told.iter().find_map(|entry| match &entry.content {
        Content::CancelRequested { why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(reason.as_deref(), Some("enough"));
    let ended = told.iter().any(|entry| {
        matches!(&entry.content, Content::RunEnded { outcome: Some(Outcome::Error(error)) }
            if error.kind() == ErrorKind::Cancelled)
    });
    assert!(ended, "{told:?}");
    let last = &told.last().expect("entries").content;
    assert!(
        matches!(last, Content::AttemptStopped { how, .. } if how == "RELEASED"),
        "{last:?}"
    );
    let error = within(BOUND, asking).await.expect("no panic");
    assert_eq!(error.expect_err("cancelled").kind(), ErrorKind::Cancelled);

    let unknown = harness.run("other", run_id).await.expect_err("not there");
    assert_eq!(unknown.kind(), ErrorKind::RunNotFound);
}
