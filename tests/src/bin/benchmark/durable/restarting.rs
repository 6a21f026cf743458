//! Row of a restart over queued runs: how soon all are there again, and what they take.

use std::time::Instant;

use harness_proto::v1::{ListAgentsRequest, StartRunRequest};
use harness_tests::durable::{start, started};
use harness_tests::raw::{RawSlot, admin, connect, full_hello};
use harness_tests::{Port, Signal, eventually};
use tempfile::TempDir;

use super::{AGENT, PATIENCE, serve};
use crate::proc;
use crate::report::{Row, row};

const QUEUED: usize = 10_000;

/// Until a harness that was killed over queued runs has all of them again, and what they take.
pub(super) async fn restarting() -> Row {
    let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
    let idle = {
        let server = serve(&port, data.path());
        let channel = connect(&port.address()).await;
        let idle = proc::memory(server.pid());
        let mut starting = tokio::task::JoinSet::new();
        for at in 0..QUEUED {
            let channel = channel.clone();
            starting.spawn(async move {
                let mut request: StartRunRequest =
                    start(AGENT, &format!("\"{}\"", "x".repeat(1000)));
                request.options = Some(harness_proto::v1::RunOptions {
                    wait_for_agent: true,
                    ..Default::default()
                });
                request.idempotency_key = at.to_string();
                started(&channel, request).await;
            });
            if starting.len() >= 64 {
                starting.join_next().await;
            }
        }
        starting.join_all().await;
        server.signal(Signal::SIGKILL);
        idle
    };
    let begin = Instant::now();
    let server = serve(&port, data.path());
    let serving = begin.elapsed();
    let channel = connect(&port.address()).await;
    let mut slot = RawSlot::attach(connect(&port.address()).await, full_hello(AGENT)).await;
    let all_there = || async {
        let agents = admin(&channel)
            .list_agents(ListAgentsRequest::default())
            .await;
        let agents = agents.expect("an answer").into_inner().agents;
        let queued = agents.first().map_or(0, |agent| agent.queued);
        queued as usize >= QUEUED - 1
    };
    harness_tests::raw::eventually(PATIENCE, "all runs are taken in", all_there).await;
    let all = begin.elapsed();
    let request = slot.request().await;
    slot.reply(&request, "1").await;
    let held = eventually("the memory is told", PATIENCE, || {
        Some(proc::memory(server.pid()))
    });
    row(
        format!("restart over {QUEUED} queued runs of 1,000 bytes"),
        format!(
            "listens after {:.2} s, has all after {:.2} s; memory {:.1} MiB, idle {:.1} MiB: {:.2} KiB a run",
            serving.as_secs_f64(),
            all.as_secs_f64(),
            held as f64 / 1048576.0,
            idle as f64 / 1048576.0,
            held.saturating_sub(idle) as f64 / 1024.0 / QUEUED as f64,
        ),
        "serving within 2 s; 50 MB and 2 KB a run",
    )
}
