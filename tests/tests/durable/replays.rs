//! Long replays: whole for a worker that reads, and no burden where none does.

use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::{Request, RunState, attach_response, entry};
use harness_server::Limits;
use harness_server::store::{Fault, Faulty, Memory, StoreError};
use harness_tests::Harness;
use harness_tests::durable::{journal, kind_of, run_of, start, started, step};
use harness_tests::raw::{Embedded, RawSlot, SOON, connect, eventually, full_hello, within};
use tempfile::TempDir;

/// Runs, each with a slot that does not read, and the steps of each run.
const RUNS: usize = 6;
const STEPS: u64 = 24;

/// The bytes of the result of a step.
const RESULT: usize = 512 * 1024;

/// What all of them may cost: a third of what there is to be sent.
const BOUND: u64 = RUNS as u64 * STEPS * RESULT as u64 / 3;

/// Records the steps of a request.
async fn record(slot: &mut RawSlot, request: &Request) {
    let result = format!("\"{}\"", "x".repeat(RESULT));
    for seq in 1..=STEPS {
        slot.send(step(request, seq, &seq.to_string(), &result))
            .await;
        loop {
            match slot.next().await {
                attach_response::Frame::Appended(told) if told.worker_seq == seq => break,
                attach_response::Frame::Appended(_) | attach_response::Frame::Heartbeat(_) => {}
                other => panic!("expected appended, got {other:?}"),
            }
        }
    }
}

/// The names of the steps that come with a request.
async fn replayed(slot: &mut RawSlot, request: &Request) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < request.replay_entries as usize {
        let told = match slot.next().await {
            attach_response::Frame::Entry(told) => told,
            attach_response::Frame::Heartbeat(_) => continue,
            other => panic!("nothing else comes between the entries of a replay: {other:?}"),
        };
        let Some(entry::Kind::Step(step)) = kind_of(&told) else {
            panic!("only steps were recorded")
        };
        names.push(step.name.clone());
    }
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_that_nobody_reads_cost_no_memory_and_whoever_reads_gets_all() {
    let data = TempDir::new().expect("a folder");
    let mut harness = Harness::builder()
        .config("[limits]\nreattach_window = \"0s\"\n")
        .argument("--data")
        .argument(data.path().display().to_string())
        .start();
    let channel = connect(harness.address()).await;
    let mut writers = Vec::new();
    for _ in 0..RUNS {
        writers.push(RawSlot::attach(connect(harness.address()).await, full_hello("long")).await);
        started(&channel, start("long", "1")).await;
    }
    for slot in &mut writers {
        let request = slot.request().await;
        record(slot, &request).await;
    }
    drop(writers);
    harness.wait_for_ready("long", 0);
    let before = harness.process().resident_bytes();

    // Each gets the request of its run, and leaves all that follows where it is.
    let mut deaf = Vec::new();
    for _ in 0..RUNS {
        deaf.push(RawSlot::attach(connect(harness.address()).await, full_hello("long")).await);
    }
    for slot in &mut deaf {
        let request = slot.request().await;
        assert_eq!((request.attempt, request.replay_entries), (2, STEPS as u32));
    }
    let cost = harness.process().resident_bytes().saturating_sub(before);
    assert!(
        cost < BOUND,
        "{cost} bytes of {BOUND} for what nobody reads"
    );
    drop(deaf);

    let mut reader = RawSlot::attach(connect(harness.address()).await, full_hello("long")).await;
    let expected: Vec<String> = (1..=STEPS).map(|seq| seq.to_string()).collect();
    for _ in 0..RUNS {
        let request = reader.request().await;
        assert_eq!(request.attempt, 3);
        assert_eq!(replayed(&mut reader, &request).await, expected);
        reader.reply(&request, "1").await;
    }
}

#[tokio::test]
async fn what_cannot_be_read_of_a_replay_is_read_again_and_comes_whole() {
    let store = Arc::new(Faulty::over(Arc::new(Memory::default())));
    let limits = Limits {
        reattach_window: Duration::ZERO,
        ..Limits::default()
    };
    let harness = Embedded::storing(limits, Some(store.clone())).await;
    let channel = harness.connect().await;
    let mut writer = RawSlot::attach(harness.connect().await, full_hello("long")).await;
    let run = started(&channel, start("long", "1")).await;
    let request = writer.request().await;
    record(&mut writer, &request).await;
    drop(writer);

    // It has its request, and much of what follows is yet to be read: more than a connection holds.
    let mut reader = RawSlot::attach(harness.connect().await, full_hello("long")).await;
    let request = reader.request().await;
    assert_eq!((request.attempt, request.replay_entries), (2, STEPS as u32));
    store.begin(0, Fault::Fails(StoreError::Full));
    let before = store.reads();
    let reading = tokio::spawn(async move {
        let names = replayed(&mut reader, &request).await;
        (reader, request, names)
    });
    let tried_again = || async { store.reads() >= before + 2 };
    eventually(SOON, "it is tried, and tried again", tried_again).await;
    assert!(!reading.is_finished(), "there is more to come");
    store.end();
    let (reader, request, names) = within(4 * SOON, reading).await.expect("no panic");
    let expected: Vec<String> = (1..=STEPS).map(|seq| seq.to_string()).collect();
    assert_eq!(names, expected);
    reader.reply(&request, "1").await;
    journal(&channel, &run.run_id, 4 * SOON).await;
    let run = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!((run.state(), run.attempt), (RunState::Succeeded, 2));
}
