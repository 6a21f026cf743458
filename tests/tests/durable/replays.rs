//! Long replays: whole for a worker that reads, and no burden where none does.

use harness_proto::v1::{Request, attach_response, entry};
use harness_tests::Harness;
use harness_tests::durable::{kind_of, start, started, step};
use harness_tests::raw::{RawSlot, connect, full_hello};
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
