//! Callers and watchers that do not read what a worker writes: memory stays bounded, and only an
//! AskStream caller slows its own run down.

use std::time::{Duration, Instant};

use harness_tests::{Asker, BOUND, Harness, eventually};
use serde_json::{Value, json};

use crate::{AMPLE, Kind, assert_calm, reply};

with_full_level_workers! {
    a_caller_that_stops_reading_for_ten_heartbeats_costs_neither_call_nor_attempt_nor_memory,
    a_watcher_that_reads_nothing_slows_nobody_and_costs_no_memory,
}

const INTERVAL: Duration = Duration::from_millis(250);
const CONFIG: &str = "[limits]\nheartbeat_interval = \"250ms\"\n";
const PIECES: u64 = 3_000;
const PIECE_BYTES: u64 = 16_000;
/// A journal of 1 MiB, a window of 256 KiB, and what the transports on both sides of the harness
/// buffer; a sixth of what the worker has to say.
const GROWTH_MAX: u64 = 8 << 20;

fn flood() -> Value {
    json!({"do": "output", "count": PIECES, "bytes": PIECE_BYTES})
}

fn a_caller_that_stops_reading_for_ten_heartbeats_costs_neither_call_nor_attempt_nor_memory(
    kind: Kind,
) {
    let mut harness = Harness::builder().config(CONFIG).start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
    let (before, worker_before) = (
        harness.process().resident_bytes(),
        worker.process().resident_bytes(),
    );
    let stream = asker.stream(&flood(), AMPLE);

    // Nothing is read until the journal has stood still for ten heartbeats.
    let mut last = (0, Instant::now());
    eventually("ten heartbeats without a piece", BOUND, || {
        let head = asker.run(stream.run_id()).head;
        if head != last.0 {
            last = (head, Instant::now());
        }
        let other = asker.ask(&reply(2), AMPLE);
        assert!(
            other.took < INTERVAL * 4,
            "a neighbour waits: {:?}",
            other.took
        );
        (last.1.elapsed() >= INTERVAL * 10).then_some(())
    });
    assert!(last.0 < PIECES / 2, "held up at {}", last.0);
    let grown = harness.process().resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the harness grew by {grown} bytes");
    let grown = worker
        .process()
        .resident_bytes()
        .saturating_sub(worker_before);
    assert!(grown < GROWTH_MAX, "the worker grew by {grown} bytes");

    // Then everything comes, from the one attempt on the one call.
    let run_id = stream.run_id().to_owned();
    let (pieces, told) = stream.rest();
    assert_eq!(told.expect("answered"), PIECES);
    assert_eq!(pieces.len() as u64, PIECES, "nothing was lost");
    assert_eq!(asker.run(&run_id).attempt, 1);
    let lines = harness.process().stderr();
    assert!(!lines.contains("failed"), "{lines}");
    assert_calm(&harness, &asker, 2);
}

fn a_watcher_that_reads_nothing_slows_nobody_and_costs_no_memory(kind: Kind) {
    let mut harness = Harness::builder().config(CONFIG).start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
    let before = harness.process().resident_bytes();
    let asking = asker.start(&flood(), AMPLE);
    let run_id = crate::next_started(worker.process(), 1);
    // Each on a connection of its own, whose window it fills.
    let watchers: Vec<_> = (0..4)
        .map(|_| Asker::new(&harness, "puppet"))
        .map(|watcher| (watcher.watch(&run_id), watcher))
        .collect();
    assert_eq!(asking.answer().json(), PIECES);
    let grown = harness.process().resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the harness grew by {grown} bytes");
    drop(watchers);
    let (kinds, gap) = asker.journal(&run_id);
    assert!(
        gap && (kinds.len() as u64) < PIECES,
        "the oldest went first"
    );
    assert_calm(&harness, &asker, 1);
}
