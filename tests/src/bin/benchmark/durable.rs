//! Rows of durable runs: from StartRun to the end beside interactive asks, and what either costs.

mod appends;
mod bare;
mod restarting;
pub(crate) mod steady;
mod watchers;
mod watching;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness_proto::v1::StartRunRequest;
use harness_tests::durable::{start, started};
use harness_tests::raw::{connect, runs};
use harness_tests::{Port, Process, program};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::report::{Row, median, row};
use crate::sides::Kind;

use bare::Bare;
use steady::Load;

/// How long a load goes on.
const LOAD: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
const AGENT: &str = "echo";

/// All rows; each of its loads so many times.
pub(crate) fn all(rounds: usize) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut rows = runtime.block_on(beside_asks(rounds));
    rows.extend([16, 64].map(|group| appends::appends(group, rounds)));
    rows.push(runtime.block_on(watching::watching()));
    rows.extend(runtime.block_on(watchers::all()));
    rows.push(runtime.block_on(restarting::restarting()));
    rows
}

fn serve(port: &Port, data: &Path) -> Process {
    let mut command = Command::new(program("harness"));
    command.args(["serve", "--listen", &port.address(), "--data"]);
    command.arg(data);
    let mut server = Process::start("server", command);
    server.wait_for_line("listening on ");
    server
}

/// One durable run from its start to its end, which is waited for.
async fn durable(channel: &Channel) {
    let request = StartRunRequest {
        wait_for_end: prost_types::Duration::try_from(PATIENCE).ok(),
        ..start(AGENT, "\"x\"")
    };
    let run = started(channel, request).await;
    assert!(run.outcome.is_some(), "it has ended: {run:?}");
}

async fn ask(channel: &Channel) {
    let asked = harness_tests::raw::ask(AGENT, "\"x\"", PATIENCE);
    runs(channel).ask(asked).await.expect("an answer");
}

/// What a load came to.
struct Measured {
    per_second: f64,
    /// The median latency in milliseconds.
    p50: f64,
}

async fn load(channel: &Channel, at_once: usize, is_durable: bool) -> Measured {
    let until = Instant::now() + LOAD;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let channel = channel.clone();
        tasks.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let begin = Instant::now();
                match is_durable {
                    true => durable(&channel).await,
                    false => ask(&channel).await,
                }
                took.push(begin.elapsed().as_secs_f64() * 1000.0);
            }
            took
        });
    }
    let took: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    Measured {
        per_second: took.len() as f64 / LOAD.as_secs_f64(),
        p50: median(took.into_iter()),
    }
}

/// So many in flight: asks, durable runs and what bare SQLite makes of such runs, in turn.
struct Beside {
    asks: Vec<Measured>,
    durable: Vec<Measured>,
    bare: Vec<Bare>,
}

impl Beside {
    async fn measure(channel: &Channel, at_once: usize, rounds: usize) -> Self {
        let (mut asks, mut durable, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds.max(1) {
            asks.push(load(channel, at_once, false).await);
            durable.push(load(channel, at_once, true).await);
            bare.push(bare::runs(at_once, LOAD));
        }
        Self {
            asks,
            durable,
            bare,
        }
    }

    fn rate(of: &[Measured]) -> f64 {
        median(of.iter().map(|it| it.per_second))
    }

    fn commit(&self) -> Duration {
        let commits = self.bare.iter().map(|it| it.commit.as_secs_f64());
        Duration::from_secs_f64(median(commits))
    }

    fn rows(&self, at_once: usize) -> [Row; 2] {
        let p50 = |of: &[Measured]| median(of.iter().map(|it| it.p50));
        let pairs = || self.durable.iter().zip(&self.asks);
        let ratio = median(pairs().map(|(durable, ask)| durable.per_second / ask.per_second));
        let bare = median(self.bare.iter().map(|it| it.runs_per_second));
        let figures = format!(
            "{:.0}/s, p50 {:.2} ms; asks {:.0}/s, p50 {:.2} ms: {ratio:.2}",
            Self::rate(&self.durable),
            p50(&self.durable),
            Self::rate(&self.asks),
            p50(&self.asks),
        );
        let in_flight = format!("durable StartRun that waits for its end, {at_once} in flight");
        let bar = if at_once == 64 { "0.60 of asks" } else { "" };
        let beside = match at_once {
            1 => {
                let over = pairs().zip(&self.bare).map(|((durable, ask), bare)| {
                    (durable.p50 - ask.p50) / 1e3 / bare.commit.as_secs_f64()
                });
                row(
                    "what one costs over an ask, 1 in flight, in bare commits of its rows"
                        .to_owned(),
                    format!(
                        "{:.1}; a bare commit {:.0} us",
                        median(over),
                        self.commit().as_secs_f64() * 1e6
                    ),
                    "2.5",
                )
            }
            _ => row(
                format!("the same rows by bare SQLite in groups of {at_once}"),
                format!(
                    "{bare:.0} runs/s, a commit {:.0} us; ours {:.2} of it",
                    self.commit().as_secs_f64() * 1e6,
                    Self::rate(&self.durable) / bare
                ),
                "",
            ),
        };
        [row(in_flight, figures, bar), beside]
    }
}

async fn beside_asks(rounds: usize) -> Vec<Row> {
    let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
    let _server = serve(&port, data.path());
    let mut command = Kind::Raw.worker();
    command.arg(port.address());
    let _worker = Process::start("worker", command);
    let channel = connect(&port.address()).await;
    let ready = || async {
        let asked = harness_tests::raw::ask(AGENT, "\"x\"", PATIENCE);
        runs(&channel).ask(asked).await.is_ok()
    };
    harness_tests::raw::eventually(PATIENCE, "the worker answers", ready).await;
    let one = Beside::measure(&channel, 1, rounds).await;
    let many = Beside::measure(&channel, 64, rounds).await;
    let mut rows: Vec<Row> = [one.rows(1), many.rows(64)].into_iter().flatten().collect();
    for load in [
        (Load::Durable, Beside::rate(&many.durable)),
        (Load::Asks, Beside::rate(&many.asks)),
    ] {
        let server = (&*port.address(), &channel);
        rows.push(steady::row_beside(server, load, one.commit(), rounds).await);
    }
    rows
}
