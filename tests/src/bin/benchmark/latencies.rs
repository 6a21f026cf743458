//! Rows of latency: from the cause, seen by this process, to its effect, seen by another on the
//! clock that both share.
//!
//! This process is the caller, with bare stubs on both sides. One ask is open at a time.

use std::process::Command;
use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::run_service_client::RunServiceClient;
use harness_tests::{Process, Signal, eventually_async};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::clock;
use crate::floor::client::connect;
use crate::load::{Load, quantile_us};
use crate::report::{Row, row};
use crate::sides::{self, Kind, Side};

const PATIENCE: Duration = Duration::from_secs(20);

/// A worker whose agent hangs until it is stopped, and who asks it.
struct Hanging {
    kind: Kind,
    address: String,
    worker: Process,
    client: RunServiceClient<Channel>,
    stopped: usize,
    #[expect(dead_code, reason = "killed when dropped")]
    server: Option<Process>,
}

impl Hanging {
    async fn start(kind: Kind) -> Self {
        let (server, address) = sides::start_server(kind);
        Self {
            server: Some(server),
            ..Self::at(kind, address).await
        }
    }

    /// On the harness of another side.
    async fn beside(side: &Side) -> Self {
        Self::at(Kind::Raw, side.address().to_owned()).await
    }

    async fn at(kind: Kind, address: String) -> Self {
        Self {
            kind,
            worker: Process::start("worker", worker(kind, &address)),
            client: RunServiceClient::new(connect(&address).await),
            address,
            stopped: 0,
            server: None,
        }
    }

    /// Asks, and gives the call once the agent has begun.
    async fn ask(&mut self, timeout: Duration) -> Open {
        let begun = self.lines("started").len();
        let mut client = self.client.clone();
        let options = v1::RunOptions {
            timeout: Some(prost_types::Duration {
                seconds: timeout.as_secs().cast_signed(),
                nanos: timeout.subsec_nanos().cast_signed(),
            }),
            wait_for_agent: true,
            ..v1::RunOptions::default()
        };
        let request = v1::AskRequest {
            agent: "hang".to_owned(),
            payload: Some(v1::Payload::default()),
            options: Some(options),
        };
        let asked = clock::nanos();
        let call = tokio::spawn(async move {
            let answer = client.ask(request).await;
            (
                clock::nanos(),
                answer.expect_err("a hanging agent gives no reply"),
            )
        });
        let line = self.line("started", begun).await;
        let run_id = line.split_once(' ').map(|(_, id)| id.to_owned());
        Open {
            call,
            asked,
            run_id: run_id.unwrap_or_default(),
        }
    }

    /// When the agent's code was stopped, once it was.
    async fn stopped(&mut self) -> u64 {
        let line = self.line("stopped", self.stopped).await;
        self.stopped += 1;
        let (_, nanos) = line.split_once(' ').expect("a time");
        nanos.parse().expect("nanoseconds")
    }

    async fn cancel(&mut self, run_id: String) {
        let request = v1::CancelRunRequest {
            run_id,
            ..v1::CancelRunRequest::default()
        };
        self.client.cancel_run(request).await.expect("a cancel");
    }

    fn lines(&self, word: &str) -> Vec<String> {
        let said = self.worker.stderr();
        let whole = said
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .filter(|line| line.starts_with(word))
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    /// The line that the worker says after so many that begin with the same word.
    async fn line(&self, word: &str, after: usize) -> String {
        let what = format!("the worker says {word}");
        eventually_async(&what, PATIENCE, async || {
            self.lines(word).into_iter().nth(after)
        })
        .await
    }
}

/// An ask that is not answered yet.
struct Open {
    call: JoinHandle<(u64, tonic::Status)>,
    /// When it was made.
    asked: u64,
    /// Empty on the floor, which has no runs.
    run_id: String,
}

/// The three ends of a call, on the floor and on the harness in turn.
pub(crate) async fn all(rounds: usize) -> Vec<Row> {
    let mut sides = [
        Hanging::start(Kind::Floor).await,
        Hanging::start(Kind::Raw).await,
    ];
    let mut cancels = [Vec::new(), Vec::new()];
    let mut hang_ups = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (side, (cancels, hang_ups)) in
            sides.iter_mut().zip(cancels.iter_mut().zip(&mut hang_ups))
        {
            cancels.push(cancelled(side).await);
            hang_ups.push(hung_up(side).await);
        }
    }
    let mut deaths = [Vec::new(), Vec::new()];
    for _ in 0..rounds.div_ceil(5) {
        for (side, deaths) in sides.iter_mut().zip(&mut deaths) {
            deaths.push(died(side).await);
        }
    }
    vec![
        latency(
            "call ended by the harness, agent's code stopped",
            cancels,
            "2x",
        ),
        latency("caller drops, agent's code stopped", hang_ups, "2x"),
        latency("worker killed, its caller answered", deaths, ""),
    ]
}

/// Deadlines while a load runs on the same harness.
pub(crate) async fn deadlines(rounds: usize) -> Vec<Row> {
    let busy = Side::start(Kind::Raw);
    let mut side = Hanging::beside(&busy).await;
    // It ends when this is dropped, not before.
    let _load = busy.load(&Load {
        inflight: 64,
        seconds: Duration::from_secs(86_400),
        bytes: 64,
        many: false,
        connections: 1,
    });
    let (mut answers, mut stops) = (Vec::new(), Vec::new());
    for at in 0..rounds {
        // Spread, so that no round meets the same moment of the load.
        let timeout = Duration::from_millis(50) + Duration::from_micros(997) * (at as u32 % 50);
        let open = side.ask(timeout).await;
        let due = open.asked + timeout.as_nanos() as u64;
        let (answered, _) = open.call.await.expect("an answer");
        answers.push(since(due, answered));
        stops.push(since(due, side.stopped().await));
    }
    vec![
        one(
            "deadline passed, caller answered, 64 in flight beside it",
            answers,
            "p99 20 ms",
        ),
        one(
            "deadline passed, agent's code stopped, 64 in flight beside it",
            stops,
            "p99 50 ms",
        ),
    ]
}

async fn cancelled(side: &mut Hanging) -> Duration {
    let open = side.ask(PATIENCE).await;
    let begin = clock::nanos();
    side.cancel(open.run_id).await;
    let stopped = side.stopped().await;
    open.call.await.expect("an end");
    since(begin, stopped)
}

async fn hung_up(side: &mut Hanging) -> Duration {
    let open = side.ask(PATIENCE).await;
    let begin = clock::nanos();
    open.call.abort();
    // The call goes with its task, at once on this thread's next turn.
    drop(open.call.await);
    since(begin, side.stopped().await)
}

async fn died(side: &mut Hanging) -> Duration {
    let open = side.ask(PATIENCE).await;
    let begin = clock::nanos();
    side.worker.signal(Signal::SIGKILL);
    let (answered, _) = open.call.await.expect("an end");
    side.worker = Process::start("worker", worker(side.kind, &side.address));
    side.stopped = 0;
    since(begin, answered)
}

fn worker(kind: Kind, address: &str) -> Command {
    let mut command = kind.worker();
    match kind {
        Kind::Floor => command.arg("--hang"),
        Kind::Raw | Kind::Typed => command.args(["--kind", "hang"]),
    };
    command.args(["--slots", "1", address]);
    command
}

/// The time between two instants of the shared clock; none if the second is the earlier.
fn since(begin: u64, end: u64) -> Duration {
    Duration::from_nanos(end.saturating_sub(begin))
}

fn quantiles(mut latencies: Vec<Duration>) -> [f64; 2] {
    latencies.sort_unstable();
    [0.50, 0.99].map(|share| quantile_us(&latencies, share) / 1e3)
}

fn latency(name: &str, [floor, harness]: [Vec<Duration>; 2], bar: &str) -> Row {
    let [floor_p50, floor_p99] = quantiles(floor);
    let [p50, p99] = quantiles(harness);
    let figure = format!(
        "p50 {p50:.2} ms, p99 {p99:.2} ms; floor {floor_p50:.2} and {floor_p99:.2}; {:.2}x and {:.2}x",
        p50 / floor_p50,
        p99 / floor_p99,
    );
    row(name.to_owned(), figure, bar)
}

fn one(name: &str, latencies: Vec<Duration>, bar: &str) -> Row {
    let [p50, p99] = quantiles(latencies);
    row(
        name.to_owned(),
        format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
        bar,
    )
}
