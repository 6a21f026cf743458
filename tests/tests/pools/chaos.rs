//! A long run in which one request in a hundred crashes its worker, one hangs and one gets garbage,
//! or is gone on with whatever happens: each caller has exactly one answer by its deadline, and
//! nothing is left of it all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, program};
use serde_json::{Value, json};
use tonic::Code;

use super::{lives, pids, pool_of, pool_with, processes_with, start};

/// Asks in work at once.
const AT_ONCE: usize = 8;

/// What an ask of a well-behaved kind may take, waiting for others included.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What one that hangs is given.
const HANG_TIMEOUT: Duration = Duration::from_millis(500);

/// How the workers are spoken to, which is what can go wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Workers {
    /// JSON Lines.
    Jsonl,
    /// The SDK's, which dial back.
    Grpc,
}

impl Workers {
    /// What the ask of a number does.
    fn order(self, number: usize) -> Value {
        match (number % 100, self) {
            (17, Self::Jsonl) => json!({"do": "crash", "code": 3}),
            (17, Self::Grpc) => json!({"do": "exit", "code": 3}),
            (50, _) => json!({"do": "hang"}),
            (83, Self::Jsonl) => json!({"do": "write", "line": "garbage"}),
            (83, Self::Grpc) => json!({"do": "block", "ms": 60_000}),
            (_, Self::Jsonl) => json!(number),
            (_, Self::Grpc) => json!({"do": "reply", "value": number}),
        }
    }

    /// A pool whose processes have a mark in their command lines.
    fn pool(self, mark: &str) -> String {
        let settings = "size = 4\nrestart = { max_crashes = 0 }";
        match self {
            Self::Jsonl => pool_of("chaos", &[mark], settings),
            Self::Grpc => {
                let worker = program("puppet").display().to_string();
                let stop =
                    "stop = { cancel_grace = \"200ms\" }\nenv = { PUPPET_SIGNALS = \"off\" }";
                let pool = pool_with("chaos", &[&worker, mark], &format!("{settings}\n{stop}"));
                pool.replace("\"jsonl\"", "\"grpc\"")
            }
        }
    }
}

/// What a process holds, as the system counts it.
fn held(pid: u32) -> (usize, u64) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("a process")
        .count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse().ok());
    (files, kib.expect("a number"))
}

/// The children of a process, zombies included.
fn children(pid: u32) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let children = tasks.flatten().flat_map(|task| {
        let told = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids: Vec<u64> = told.split_whitespace().flat_map(str::parse).collect();
        pids
    });
    children.collect()
}

/// Asks the numbers, some at once, and counts what came of them.
fn ask_all(
    harness: &Harness,
    workers: Workers,
    numbers: std::ops::Range<usize>,
) -> HashMap<&'static str, usize> {
    let asker = Asker::new(harness, "chaos");
    let mut counts = HashMap::new();
    let mut asking = std::collections::VecDeque::new();
    let mut finish = |(number, asked): (usize, harness_tests::Asking<'_>)| {
        let answer = asked.answer();
        let met = match number % 100 {
            17 => {
                answer.error(Code::Aborted, ErrorCode::WorkerLost);
                "crashed"
            }
            50 => {
                answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
                "hung"
            }
            83 if workers == Workers::Grpc => {
                answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
                "garbage"
            }
            83 => {
                answer.error(Code::Internal, ErrorCode::ProtocolViolation);
                "garbage"
            }
            _ => {
                assert_eq!(answer.json(), json!(number), "the answer of another");
                "answered"
            }
        };
        *counts.entry(met).or_default() += 1;
    };
    for number in numbers {
        let order = workers.order(number);
        let hangs = number % 100 == 50 || (number % 100 == 83 && workers == Workers::Grpc);
        let timeout = if hangs { HANG_TIMEOUT } else { TIMEOUT };
        asking.push_back((number, asker.start(&order, timeout)));
        if asking.len() >= AT_ONCE {
            asking.pop_front().into_iter().for_each(&mut finish);
        }
    }
    asking.into_iter().for_each(&mut finish);
    counts
}

#[test]
fn with_crashes_hangs_and_garbage_each_caller_has_one_answer_and_nothing_is_left() {
    survives(Workers::Jsonl);
}

#[test]
fn with_crashes_and_hangs_each_caller_of_those_who_dial_back_has_one_answer_and_nothing_is_left() {
    survives(Workers::Grpc);
}

#[expect(clippy::print_stdout, reason = "the figures of a long run")]
fn survives(workers: Workers) {
    let soak = std::env::var_os("HARNESS_SOAK").is_some();
    let asks = if soak { 10_000 } else { 1_000 };
    let marker = format!("--marker={}", uuid::Uuid::new_v4());
    let limits = "[limits]\nended_runs = 100\n";
    let config = format!("{limits}{}", workers.pool(&marker));
    let mut harness = start(&config, &["chaos"]);
    let pid = harness.process().pid();

    // What it grows to by being used at all.
    ask_all(&harness, workers, 0..200);
    harness.wait_for_full("chaos");
    let (files_before, kib_before) = held(pid);
    let start = Instant::now();
    let counts = ask_all(&harness, workers, 200..200 + asks);
    let took = start.elapsed();
    let each = asks / 100;
    let expected = HashMap::from([
        ("answered", asks - 3 * each),
        ("crashed", each),
        ("hung", each),
        ("garbage", each),
    ]);
    assert_eq!(counts, expected);

    let view = harness.wait_for_full("chaos");
    assert_eq!(
        (&view["ready"], &view["failed_starts"]),
        (&json!(4), &json!(0)),
        "{view}"
    );
    let pids = pids(&view);
    let mut there = processes_with(&marker);
    there.retain(|there| !pids.contains(there));
    assert!(there.is_empty(), "orphans: {there:?}");
    let children = children(pid);
    assert!(children.len() <= 4, "{children:?} for 4 processes");
    assert!(
        children.iter().all(|child| lives(*child)),
        "a zombie in {children:?}"
    );
    // Connections of the last command line may still be closing.
    let (files, kib) = harness_tests::eventually("no growth in files", BOUND, || {
        let (files, kib) = held(pid);
        (files <= files_before + 2).then_some((files, kib))
    });
    println!(
        "{asks} asks in {took:?}; files {files_before} then {files}; {kib_before} KiB then {kib} KiB"
    );
    assert!(
        kib < kib_before + 16 * 1024,
        "{kib_before} KiB then {kib} KiB"
    );

    harness.stop();
    let left = processes_with(&marker);
    assert!(left.is_empty(), "orphans: {left:?}");
}
