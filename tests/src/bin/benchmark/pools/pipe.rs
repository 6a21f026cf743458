//! The bare pipe: a worker of the JSON Lines dialect, asked one line at a time, with nothing between.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::load::{Load, Told};

/// Not counted, as `harness bench` has it.
const WARM_UP: Duration = Duration::from_millis(500);

/// A worker that is killed when dropped.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks for as long as the load says, and tells how fast that was.
pub(super) fn ping_pong(mut command: Command, load: &Load) -> Told {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = Worker(command.spawn().expect("the worker must start"));
    let mut stdin = worker.0.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(worker.0.stdout.take().expect("a pipe"));
    // As long as the id of a run.
    let id = "0190f5b2-0000-7000-8000-000000000000";
    let message = "x".repeat(load.bytes - 2);
    let question = format!("{{\"id\":\"{id}\",\"message\":\"{message}\"}}\n");
    let mut answer = String::new();
    let mut latencies = Vec::new();
    let begin = Instant::now() + WARM_UP;
    let end = begin + load.seconds;
    loop {
        let asked = Instant::now();
        stdin.write_all(question.as_bytes()).expect("it must read");
        answer.clear();
        stdout.read_line(&mut answer).expect("it must answer");
        assert!(answer.contains(id), "{answer:?}");
        let answered = Instant::now();
        if answered >= end {
            return Told::of(latencies, load.seconds);
        }
        if asked >= begin {
            latencies.push(answered - asked);
        }
    }
}
