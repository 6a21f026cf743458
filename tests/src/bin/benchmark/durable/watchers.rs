//! Rows of many who follow durable runs: what each costs the server, and how soon all see an entry.

use std::time::{Duration, Instant};

use harness_proto::v1::{StartRunRequest, WatchRunResponse, entry, watch_run_response};
use harness_tests::durable::{append, start, started, watch};
use harness_tests::raw::{RawSlot, connect, full_hello};
use harness_tests::{Port, Process};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Streaming;
use tonic::transport::Channel;

use super::{AGENT, serve};
use crate::proc;
use crate::report::{Row, row};

const WATCHERS: usize = 10_000;

/// Watchers of one connection.
const A_CONNECTION: usize = 500;

/// Watchers that read nothing, and what the journal they ask for holds: entries and their bytes.
const DEAF: usize = 500;
const LONG: (u64, usize) = (512, 16 * 1024);

/// A server, its one worker and a caller.
struct Setting {
    server: Process,
    address: String,
    slot: RawSlot,
    channel: Channel,
    _data: TempDir,
}

pub(super) async fn all() -> [Row; 3] {
    [of_one().await, of_many().await, deaf().await]
}

impl Setting {
    async fn new() -> Self {
        let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
        let server = serve(&port, data.path());
        let address = port.address();
        Self {
            server,
            slot: RawSlot::attach(connect(&address).await, full_hello(AGENT)).await,
            channel: connect(&address).await,
            address,
            _data: data,
        }
    }

    fn memory(&self) -> u64 {
        proc::memory(self.server.pid())
    }

    /// Watchers from a number on, each of the run that `of` names for it.
    async fn watchers(
        &self,
        count: usize,
        from: u64,
        of: impl Fn(usize) -> String,
    ) -> Vec<Streaming<WatchRunResponse>> {
        let mut watching = Vec::new();
        let mut channel = self.channel.clone();
        for at in 0..count {
            if at % A_CONNECTION == 0 {
                channel = connect(&self.address).await;
            }
            watching.push(watch(&channel, &of(at), from).await.expect("known"));
        }
        watching
    }
}

fn of(bytes: usize) -> entry::Kind {
    entry::Kind::Log(harness_proto::v1::Log {
        message: "x".repeat(bytes),
        ..Default::default()
    })
}

/// How many KiB each of so many costs.
fn each(before: u64, after: u64, count: usize) -> f64 {
    after.saturating_sub(before) as f64 / 1024.0 / count as f64
}

async fn of_one() -> Row {
    let mut setting = Setting::new().await;
    let run = started(&setting.channel, start(AGENT, "1")).await;
    let request = setting.slot.request().await;
    let before = setting.memory();
    let watching = setting.watchers(WATCHERS, 3, |_| run.run_id.clone()).await;
    let cost = each(before, setting.memory(), WATCHERS);
    let began = Instant::now();
    setting.slot.send(append(&request, 1, of(100))).await;
    let mut seen: JoinSet<bool> = JoinSet::new();
    for mut events in watching {
        seen.spawn(async move {
            let told = events.message().await.expect("no error").expect("an entry");
            matches!(told.event, Some(watch_run_response::Event::Entry(_)))
        });
    }
    assert!(seen.join_all().await.into_iter().all(|seen| seen));
    let took = began.elapsed();
    row(
        format!("{WATCHERS} watchers of one run"),
        format!("{cost:.1} KiB each; all see an entry after {took:.0?}"),
        "",
    )
}

async fn of_many() -> Row {
    let setting = Setting::new().await;
    let mut runs = Vec::new();
    for _ in 0..WATCHERS {
        let mut request: StartRunRequest = start("nobody", "1");
        request.options = Some(harness_proto::v1::RunOptions {
            wait_for_agent: true,
            ..Default::default()
        });
        runs.push(started(&setting.channel, request).await.run_id);
    }
    let before = setting.memory();
    let watching = setting.watchers(WATCHERS, 2, |at| runs[at].clone()).await;
    let cost = each(before, setting.memory(), WATCHERS);
    drop(watching);
    row(
        format!("{WATCHERS} watchers of as many runs"),
        format!("{cost:.1} KiB each"),
        "",
    )
}

async fn deaf() -> Row {
    let (entries, bytes) = LONG;
    let mut setting = Setting::new().await;
    let run = started(&setting.channel, start(AGENT, "1")).await;
    let request = setting.slot.request().await;
    for seq in 1..=entries {
        setting.slot.send(append(&request, seq, of(bytes))).await;
        setting.slot.next().await;
    }
    let before = setting.memory();
    let watching = setting.watchers(DEAF, 1, |_| run.run_id.clone()).await;
    // Until no more is read for them.
    let mut after = setting.memory();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = setting.memory();
        if now.abs_diff(after) < 1 << 20 {
            break;
        }
        after = now;
    }
    let cost = each(before, after, DEAF);
    drop(watching);
    row(
        format!(
            "{DEAF} watchers that read nothing of {} MiB",
            (entries as usize * bytes) >> 20
        ),
        format!("{cost:.0} KiB each"),
        "",
    )
}
