//! Rows of replacement: from the death of a worker, or from the deadline of its request, until
//! another one takes work.
//!
//! The naive supervisor is asked in turn with the harness; its way from the deadline is SIGKILL at
//! once, so the pool's graces are none here.

use std::time::{Duration, Instant};

use harness_proto::v1;
use harness_proto::v1::admin_service_client::AdminServiceClient;
use harness_proto::v1::run_service_client::RunServiceClient;
use harness_tests::raw::{admin, ask, connect, runs};
use harness_tests::{Harness, eventually_async};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tonic::transport::Channel;

use super::interpreter::{self, Interpreter};
use super::{naive, pool};
use crate::load::quantile_us;
use crate::report::{Row, row};

const PATIENCE: Duration = Duration::from_secs(20);
const AGENT: &str = "loop";
/// What a request that hangs is given.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Asked at once of the naive supervisor, so that both drift alike.
const IN_TURN: usize = 10;

/// The caller of a pool of one.
struct Caller {
    runs: RunServiceClient<Channel>,
    admin: AdminServiceClient<Channel>,
}

/// What came of the harness's rounds.
#[derive(Default)]
struct Times {
    told: Vec<Duration>,
    crash_ready: Vec<Duration>,
    naive_crash: Vec<Duration>,
    sigkill: Vec<Duration>,
    reaped: Vec<Duration>,
    replaced: Vec<Duration>,
    deadline_ready: Vec<Duration>,
    naive_deadline: Vec<Duration>,
}

/// All of them, each so often.
pub(crate) async fn all(rounds: usize) -> Vec<Row> {
    let Some(python) = Interpreter::find() else {
        return vec![interpreter::missing("replacement")];
    };
    let settings = "restart = { max_crashes = 0, max_failed_starts = 0 }\n\
                    stop = { cancel_grace = \"0s\", term_grace = \"0s\" }";
    let config = pool(&python, AGENT, settings);
    let harness = Harness::builder().config(config).start();
    harness.wait_for_full(AGENT);
    let channel = connect(harness.address()).await;
    let mut caller = Caller {
        runs: runs(&channel),
        admin: admin(&channel),
    };
    let mut times = Times::default();
    for _ in 0..rounds.div_ceil(IN_TURN) {
        for _ in 0..IN_TURN {
            caller.crash(&mut times).await;
        }
        let arguments = ["crash", &IN_TURN.to_string()];
        times.naive_crash.extend(naive_times(&python, &arguments));
        for _ in 0..IN_TURN {
            caller.deadline(&mut times).await;
        }
        let seconds = TIMEOUT.as_secs_f64().to_string();
        let arguments = ["deadline", &IN_TURN.to_string(), &seconds];
        times
            .naive_deadline
            .extend(naive_times(&python, &arguments));
    }
    times.rows()
}

impl Caller {
    /// The process id of the worker that answers; the first one that does.
    async fn pid(&mut self) -> Pid {
        loop {
            let request = ask(AGENT, "{\"do\": \"pid\"}", PATIENCE);
            if let Ok(answer) = self.runs.ask(request).await {
                let payload = answer.into_inner().payload.expect("a reply");
                let pid: i32 = serde_json::from_slice(&payload.data).expect("a number");
                return Pid::from_raw(pid);
            }
        }
    }

    /// Asks what hangs, once the worker has it.
    async fn hang(&mut self, timeout: Duration) -> tokio::task::JoinHandle<Instant> {
        let mut runs = self.runs.clone();
        let call = tokio::spawn(async move {
            let request = ask(AGENT, "{\"do\": \"hang\"}", timeout);
            let hung = runs.ask(request).await;
            hung.expect_err("who hangs does not reply");
            Instant::now()
        });
        eventually_async("the worker has it", PATIENCE, async || {
            let request = v1::ListAgentsRequest::default();
            let listed = self.admin.clone().list_agents(request).await;
            let agents = listed.expect("a list").into_inner().agents;
            (agents.first()?.slots_busy == 1).then_some(())
        })
        .await;
        call
    }

    /// A worker is killed with a request in it.
    async fn crash(&mut self, times: &mut Times) {
        let pid = self.pid().await;
        let call = self.hang(PATIENCE).await;
        let killed = Instant::now();
        kill(pid, Signal::SIGKILL).expect("a living worker");
        let told = call.await.expect("an answer");
        times.told.push(told - killed);
        assert_ne!(self.pid().await, pid, "it was killed");
        times.crash_ready.push(killed.elapsed());
    }

    /// A request hangs over its deadline.
    async fn deadline(&mut self, times: &mut Times) {
        let pid = self.pid().await;
        let due = Instant::now() + TIMEOUT;
        let call = self.hang(TIMEOUT).await;
        call.await.expect("an answer");
        assert_ne!(self.pid().await, pid, "it was ended");
        times.deadline_ready.push(due.elapsed());
        let stop = self.last_stop().await;
        let after = |time: Option<prost_types::Duration>| {
            let time = time.expect("a rung that was stood on");
            Duration::new(time.seconds as u64, time.nanos as u32)
        };
        let sigkill = after(stop.sigkill_after);
        times.sigkill.push(sigkill);
        times
            .reaped
            .push(after(stop.reaped_after).saturating_sub(sigkill));
        let replaced = after(stop.replaced_after);
        times.replaced.push(replaced.saturating_sub(sigkill));
    }

    async fn last_stop(&mut self) -> v1::StoppedProcess {
        let listed = self.admin.list_pools(v1::ListPoolsRequest::default()).await;
        let mut pools = listed.expect("a list").into_inner().pools;
        let stopped = pools.first_mut().and_then(|pool| pool.stopped.pop());
        stopped.expect("a process that was ended")
    }
}

/// What the naive supervisor took, each time.
fn naive_times(python: &Interpreter, arguments: &[&str]) -> Vec<Duration> {
    let told: Value = naive(python, arguments);
    let took = told["ready_us"].as_array().expect("durations");
    let micros = took.iter().map(|time| time.as_f64().expect("microseconds"));
    micros
        .map(|time| Duration::from_secs_f64(time / 1e6))
        .collect()
}

impl Times {
    fn rows(self) -> Vec<Row> {
        vec![
            one("worker killed, its caller answered", self.told, ""),
            pair(
                "worker killed, another one answers",
                self.crash_ready,
                self.naive_crash,
            ),
            one("deadline passed, SIGKILL", self.sigkill, ""),
            one("SIGKILL, nothing left of the process", self.reaped, ""),
            one("SIGKILL, another one ready", self.replaced, ""),
            pair(
                "deadline passed, another one answers",
                self.deadline_ready,
                self.naive_deadline,
            ),
        ]
    }
}

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let [p50, p99] = [0.50, 0.99].map(|share| quantile_us(&times, share) / 1e3);
    format!("p50 {p50:.1} ms, p99 {p99:.1} ms")
}

fn one(name: &str, times: Vec<Duration>, bar: &str) -> Row {
    row(name.to_owned(), quantiles(times), bar)
}

fn pair(name: &str, harness: Vec<Duration>, naive: Vec<Duration>) -> Row {
    let figure = format!(
        "{}; naive supervisor {}",
        quantiles(harness),
        quantiles(naive)
    );
    row(name.to_owned(), figure, "")
}
