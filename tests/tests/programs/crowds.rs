//! A crowd that comes back all at once: ten thousand slots of a hundred workers of the SDK whose
//! harness is killed, and again when it has them back. They come paced and jittered, all of them, and the
//! harness's memory is what it was.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use harness_tests::{Asker, BOUND, Harness, Port, Signal, Worker, eventually};
use serde_json::{Value, json};

/// Each with a connection of its own, which is what is made again.
const WORKERS: usize = 100;
/// Of each worker.
const SLOTS: usize = 100;
/// Of all workers.
const CROWD: u64 = (WORKERS * SLOTS) as u64;
/// How long nothing but refusals answers the workers.
const AWAY: Duration = Duration::from_secs(2);
/// The waits between tries, as `WorkerBuilder::reconnect_waits` documents them.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Waits no further apart than this are the same.
const IN_STEP: Duration = Duration::from_millis(30);
/// A hundred workers do not come back within so short a time: by the end of [`AWAY`] the waits of
/// each are drawn from 800 ms or more.
const SHORT: Duration = Duration::from_millis(200);
/// How long a caller waits for an answer while the crowd comes back.
const PATIENCE: Duration = Duration::from_secs(5);
/// Asks at once when all are back: as many as may wait for an agent.
const ASKS: usize = 1_000;
/// What memory may be beyond a quarter more than before.
const SLACK: u64 = 8 << 20;

fn serve(port: &Port) -> Harness {
    Harness::builder().listen(port.address()).start()
}

/// How often a worker tries within [`AWAY`] if each wait is this share of the one it is drawn
/// around: one by the slot that tries first, the others by the connection.
fn tries(share: f64) -> usize {
    let (mut wait, mut at, mut tries) = (FIRST_WAIT, FIRST_WAIT.mul_f64(share), 0);
    while at <= AWAY {
        at += wait.mul_f64(share);
        wait = (wait * 2).min(LONGEST_WAIT);
        tries += 1;
    }
    tries
}

/// Stands in the place of a harness that is gone: takes each connection, closes it without a word,
/// and gives the times at which they came.
fn tries_while_away(port: &Port) -> Vec<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind(port.address()).expect("the port is free");
        listener.set_nonblocking(true).expect("a new listener");
        let listener = tokio::net::TcpListener::from_std(listener).expect("in a runtime");
        let (began, mut times) = (Instant::now(), Vec::new());
        let listening = async {
            loop {
                drop(listener.accept().await.expect("a connection"));
                times.push(began.elapsed());
            }
        };
        let _ = tokio::time::timeout(AWAY, listening).await;
        times
    })
}

/// All workers try, as often as their waits allow and not in step: without jitter the last tries would
/// be those before them, a wait later. Gives how far apart their waits are.
#[track_caller]
fn assert_paced(times: &[Duration]) -> Duration {
    // One may have come before anybody listened.
    let range = WORKERS * (tries(1.5) - 1)..=WORKERS * tries(0.5);
    assert!(range.contains(&times.len()), "{range:?} tries: {times:?}");
    let (before, last) = times[times.len() - 2 * WORKERS..].split_at(WORKERS);
    let waits = last
        .iter()
        .zip(before)
        .map(|(last, before)| *last - *before);
    let mut waits: Vec<_> = waits.collect();
    waits.sort_unstable();
    // Of the middle half: a try that was late and not counted shifts those at the edges.
    let apart = waits[WORKERS * 3 / 4] - waits[WORKERS / 4];
    assert!(apart > IN_STEP, "within {apart:?}: {times:?}");
    apart
}

fn ready(harness: &Harness) -> u64 {
    let agent = harness.agent("puppet");
    agent.map_or(0, |agent| agent["slots_ready"].as_u64().unwrap_or(0))
}

/// Waits until all slots are READY, asking all the while once there is one; gives the most memory
/// that the harness had on the way.
#[track_caller]
fn come_back(harness: &mut Harness) -> u64 {
    let asker = Asker::new(harness, "puppet");
    let mut most = 0;
    eventually("all slots are READY", BOUND, || {
        most = most.max(harness.process().resident_bytes());
        let ready = ready(harness);
        if ready > 0 {
            let asked = asker.ask(&json!({"do": "reply", "value": ready}), PATIENCE);
            assert_eq!(asked.json(), ready);
        }
        (ready == CROWD).then_some(())
    });
    most
}

/// The ids of the workers in order, each of which has all its slots.
#[track_caller]
fn whole(workers: &Value) -> Vec<&str> {
    let workers = workers.as_array().expect("a list");
    for worker in workers {
        let slots = worker["slots"].as_array().map(Vec::len);
        assert_eq!(slots, Some(SLOTS), "{}", worker["worker_id"]);
    }
    let mut ids: Vec<_> = workers
        .iter()
        .map(|worker| worker["worker_id"].as_str().expect("an id"))
        .collect();
    ids.sort_unstable();
    ids
}

/// They have not all come at the same time.
#[track_caller]
fn assert_spread(workers: &Value) {
    let workers = workers.as_array().expect("a list");
    let attached_for = |worker: &Value| worker["attached_for_seconds"].as_f64();
    let mut times: Vec<_> = workers.iter().filter_map(attached_for).collect();
    times.sort_unstable_by(f64::total_cmp);
    assert_eq!(times.len(), WORKERS);
    let took = times[WORKERS - 1] - times[0];
    assert!(took > SHORT.as_secs_f64(), "within {took} s: {times:?}");
}

#[test]
fn ten_thousand_slots_come_back_to_a_killed_harness_paced_and_all_and_cost_no_memory() {
    let port = Port::free();
    let mut harness = serve(&port);
    let puppet = Worker::puppet().workers(WORKERS).slots(SLOTS as u64);
    let crowd = puppet.start_unattached(harness.address());
    come_back(&mut harness);
    let workers = harness.workers("puppet");
    let known = whole(&workers);
    assert_eq!(known.len(), WORKERS);
    let held = harness.process().resident_bytes();

    for kill in ["the first kill", "the second kill"] {
        harness.process().signal(Signal::SIGKILL);
        drop(harness);
        let apart = assert_paced(&tries_while_away(&port));
        harness = serve(&port);
        let began = Instant::now();
        let most = come_back(&mut harness);
        let told = format!(
            "{kill}: waits {apart:?} apart, back after {:?}, {} MiB at most and {} before",
            began.elapsed(),
            most >> 20,
            held >> 20
        );
        eprintln!("{told}");
        assert!(most < held / 4 * 5 + SLACK, "{told}");
        let workers = harness.workers("puppet");
        assert_eq!(whole(&workers), known);
        assert_spread(&workers);
    }
    let log = harness.process().stderr();
    assert!(!log.contains("panicked"), "{log}");
    let asker = Asker::new(&harness, "puppet");
    let question = json!({"do": "reply", "value": 1});
    let asked: Vec<_> = (0..ASKS).map(|_| asker.start(&question, BOUND)).collect();
    for asking in asked {
        assert_eq!(asking.answer().json(), 1);
    }
    // None of the workers had ended before.
    let left = crowd.stop();
    assert_eq!(left.code, Some(0), "{left}");
}
