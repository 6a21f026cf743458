//! Rows of pools: a process per request beside processes that stay, and the harness beside a bare
//! pipe to the same worker.
//!
//! Every side runs the same Python file with the same interpreter.

mod interpreter;
pub(crate) mod neighbour;
mod pipe;
pub(crate) mod replacing;

use std::time::Duration;

use harness_tests::{BOUND, Harness, Process, source};

use crate::load::{Load, Told};
use crate::report::{Row, median, row};
use crate::throughput::Effort;

use interpreter::Interpreter;

/// Requests at once, and processes to work them, where processes are compared.
const AT_ONCE: usize = 2;

/// The naive supervisor, and the harness in both modes and with one process.
#[derive(Default)]
struct Measured {
    naive: Vec<Told>,
    per_request: Vec<Told>,
    reused: Vec<Told>,
    pipe: Vec<Told>,
    one: Vec<Told>,
    full: Vec<Told>,
    many: Vec<Told>,
}

/// A pool of the looping worker.
fn pool(python: &Interpreter, agent: &str, settings: &str) -> String {
    pool_of(&python.command(&worker()), agent, settings)
}

/// A pool of any command.
fn pool_of(command: &[String], agent: &str, settings: &str) -> String {
    let command = serde_json::json!(command);
    format!("[[pool]]\nagent = \"{agent}\"\ncommand = {command}\ndialect = \"jsonl\"\n{settings}\n")
}

/// The worker's file.
fn worker() -> String {
    let path = source("tests/python/looping_worker.py").canonicalize();
    path.expect("the looping worker").display().to_string()
}

/// A closed loop over one connection.
fn load(effort: Effort, inflight: usize, many: bool) -> Load {
    Load {
        inflight,
        seconds: Duration::from_secs(effort.seconds),
        bytes: 64,
        many,
        connections: 1,
    }
}

/// What `harness bench` tells of a load.
fn bench(harness: &Harness, agent: &str, load: &Load) -> Told {
    let mut command = harness.command(["bench", agent, "--json"]);
    command.args(load.arguments());
    let bound = 2 * load.seconds + BOUND;
    let finished = Process::start("bench", command).finish_within(bound);
    assert_eq!(finished.code, Some(0), "{finished}");
    Told::read(&finished.json())
}

/// Requests a second and latency; one round asks every side in turn.
pub(crate) fn all(effort: Effort) -> Vec<Row> {
    let Some(python) = Interpreter::find() else {
        return vec![interpreter::missing("pools")];
    };
    let size = format!("size = {AT_ONCE}");
    let config = [
        pool(&python, "once", &format!("{size}\nmode = \"per-request\"")),
        pool(&python, "reused", &size),
        pool(&python, "one", ""),
    ];
    let harness = Harness::builder().config(config.concat()).start();
    for agent in ["once", "reused", "one"] {
        harness.wait_for_full(agent);
    }
    let load = |inflight, many| load(effort, inflight, many);
    let mut measured = Measured::default();
    for _ in 0..effort.rounds {
        let at_once = load(AT_ONCE, false);
        measured.naive.push(naive_load(&python, &at_once));
        measured.per_request.push(bench(&harness, "once", &at_once));
        measured.reused.push(bench(&harness, "reused", &at_once));
        let single = load(1, false);
        let worker = python.process(&[worker()]);
        measured.pipe.push(pipe::ping_pong(worker, &single));
        measured.one.push(bench(&harness, "one", &single));
        measured.full.push(bench(&harness, "one", &load(64, false)));
        measured.many.push(bench(&harness, "one", &load(64, true)));
    }
    rows(&python, &measured)
}

/// The naive supervisor under a load.
fn naive_load(python: &Interpreter, load: &Load) -> Told {
    let (seconds, inflight) = (load.seconds.as_secs_f64(), load.inflight);
    Told::read(&naive(
        python,
        &["load", &seconds.to_string(), &inflight.to_string()],
    ))
}

/// What the naive supervisor tells.
fn naive(python: &Interpreter, arguments: &[&str]) -> serde_json::Value {
    let script = source("tests/python/naive_supervisor.py");
    let mut words = vec![script.display().to_string(), worker()];
    words.extend(arguments.iter().map(ToString::to_string));
    let process = Process::start("naive supervisor", python.process(&words));
    let finished = process.finish_within(6 * BOUND);
    assert_eq!(finished.code, Some(0), "{finished}");
    finished.json()
}

fn rows(python: &Interpreter, measured: &Measured) -> Vec<Row> {
    let rate = |told: &[Told]| median(told.iter().map(|one| one.requests_per_s));
    let ratio = |upper: &[Told], lower: &[Told]| {
        let pairs = upper.iter().zip(lower);
        median(pairs.map(|(upper, lower)| upper.requests_per_s / lower.requests_per_s))
    };
    let latency = |told: &[Told]| {
        let p50 = median(told.iter().map(|one| one.p50_us));
        let p99 = median(told.iter().map(|one| one.p99_us));
        format!("{:.1}/s, p50 {p50:.0} us, p99 {p99:.0} us", rate(told))
    };
    let over_pipe = median(
        (measured.one.iter().zip(&measured.pipe)).map(|(one, pipe)| one.p50_us - pipe.p50_us),
    );
    let Measured {
        naive,
        per_request,
        reused,
        pipe,
        one,
        full,
        many,
    } = measured;
    let shared = |what: &str| format!("{what}, {AT_ONCE} at once");
    vec![
        row("interpreter".to_owned(), python.to_string(), ""),
        row(
            shared("naive supervisor, a process per request"),
            latency(naive),
            "",
        ),
        row(shared("mode = \"per-request\""), latency(per_request), ""),
        row(
            shared("mode = \"reuse\""),
            format!(
                "{}; {:.0}x of per-request, {:.0}x of the naive supervisor",
                latency(reused),
                ratio(reused, per_request),
                ratio(reused, naive),
            ),
            "50x of process per request",
        ),
        row("bare pipe to one worker".to_owned(), latency(pipe), ""),
        row(
            "a pool of one, 1 in flight".to_owned(),
            format!("{}; {over_pipe:.0} us over the pipe's p50", latency(one)),
            "300 us",
        ),
        row(
            "a pool of one, 64 in flight".to_owned(),
            format!("{}; {:.2} of the pipe", latency(full), ratio(full, pipe)),
            "0.8 of the pipe (goal)",
        ),
        row(
            "a pool of one, many, 64 in flight".to_owned(),
            format!("{}; {:.2} of the pipe", latency(many), ratio(many, pipe)),
            "0.8 of the pipe (goal)",
        ),
    ]
}
