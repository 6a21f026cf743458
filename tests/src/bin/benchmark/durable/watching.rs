//! Row of an entry on its way from a worker to who follows the run.

use std::time::Instant;

use harness_proto::v1::{entry, watch_run_response};
use harness_tests::Port;
use harness_tests::durable::{append, kind_of, start, started, watch};
use harness_tests::raw::{RawSlot, connect, full_hello};
use tempfile::TempDir;

use super::{AGENT, serve};
use crate::report::{Row, row};

/// How long after a worker has sent an entry it is acknowledged, and seen by who follows the run.
pub(super) async fn watching() -> Row {
    const ENTRIES: u64 = 500;
    let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
    let _server = serve(&port, data.path());
    let mut slot = RawSlot::attach(connect(&port.address()).await, full_hello(AGENT)).await;
    let channel = connect(&port.address()).await;
    let run = started(&channel, start(AGENT, "\"x\"")).await;
    let request = slot.request().await;
    let mut events = watch(&channel, &run.run_id, 3).await.expect("known");
    let mut seen = Vec::new();
    for seq in 1..=ENTRIES {
        let log = entry::Kind::Log(harness_proto::v1::Log {
            message: "a line of some length, as logs are".to_owned(),
            ..Default::default()
        });
        let begin = Instant::now();
        slot.send(append(&request, seq, log)).await;
        let event = events.message().await.expect("no error").expect("an entry");
        let Some(watch_run_response::Event::Entry(told)) = event.event else {
            continue;
        };
        assert!(matches!(kind_of(&told), Some(entry::Kind::Log(_))));
        seen.push(begin.elapsed().as_secs_f64() * 1000.0);
        slot.next().await;
    }
    seen.sort_by(f64::total_cmp);
    let at = |share: f64| seen[((seen.len() - 1) as f64 * share) as usize];
    row(
        "an entry sent, seen by WatchRun, 1 at once".to_owned(),
        format!("p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99)),
        "",
    )
}
