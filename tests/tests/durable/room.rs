//! A harness whose files may not grow any more.

use std::process::Command;

use harness_proto::v1::ErrorCode;
use harness_tests::durable::{run_of, start, started};
use harness_tests::raw::{Embedded, RawSlot, SOON, asking, hello, runs, typed, within};
use harness_tests::{Process, program};
use tempfile::TempDir;
use tonic::Code;

/// Runs that are started until there is no room; many times what fits.
const RUNS: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_size_limit_refuses_durable_runs_and_ends_nothing() {
    let data = TempDir::new().expect("a folder of its own");
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -f 4096 && exec \"$@\"", "sh"])
        .arg(program("harness"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data.path());
    let mut process = Process::start("harness serve", command);
    let line = process.wait_for_line("listening on ");
    let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
    let harness = Embedded::at(address);
    let channel = harness.connect().await;
    let _later = RawSlot::attach(harness.connect().await, hello("later")).await;
    let first = started(&channel, start("later", "1")).await;

    let filling = format!("\"{}\"", "x".repeat(64 * 1024));
    let mut refused = None;
    for _ in 0..RUNS {
        let asked = within(SOON, runs(&channel).start_run(start("later", &filling))).await;
        refused = asked.err();
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("it does not fit");
    let _ = typed(&refused, Code::Unavailable, ErrorCode::StoreUnavailable);
    run_of(&channel, &first.run_id)
        .await
        .expect("what is on disk can be read");
    let mut slot = RawSlot::attach(harness.connect().await, hello("now")).await;
    let asked = asking(&harness, "now", SOON).await;
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    within(SOON, asked)
        .await
        .expect("no panic")
        .expect("asks go on");
    assert!(process.try_wait().is_none(), "it lives");
}
