//! One format of journals on disk: what the SDK's local journal writes, the harness's reader reads.

use std::path::Path;

use harness_proto::v1;
use harness_proto::v1::entry::Kind;
use harness_server::ids::RunId;
use harness_server::store::{self, Entry};
use prost::Message as _;
use worker_sdk::journal::{Local, Usage};
use worker_sdk::{AgentError, Context, testing};

const RUNS: [&str; 2] = [
    "0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b3",
    "0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b4",
];

/// One attempt, which crashes at its fifth write. Whether it got there.
async fn crashes(path: &Path, run_id: &str) -> bool {
    let file = Local::open(path).expect("the file opens");
    let journal = file.attempt(run_id).expect("the next attempt");
    let setting = testing::context().run_id(run_id).attempt(journal.number());
    let (ctx, record) = setting.journal(journal).crash_at(5).build();
    tokio::select! {
        reply = work(ctx) => {
            assert_eq!(reply.expect("a reply"), 2);
            false
        }
        () = record.crashed() => true,
    }
}

async fn work(ctx: Context) -> Result<u64, AgentError> {
    ctx.output("piece").await?;
    let usage = Usage {
        input_tokens: 7,
        ..Usage::default()
    };
    ctx.usage(usage).await?;
    let _: u64 = ctx
        .step("look", |_| async { Ok(1) })
        .key(format!("in-{}", ctx.attempt()))
        .read_only()
        .await?;
    Ok(ctx.step("write", |_| async { Ok(2) }).await?)
}

fn entries(path: &Path, run: Option<RunId>) -> Vec<(RunId, Entry)> {
    let mut found = Vec::new();
    let all = |of, entry| {
        found.push((of, entry));
        true
    };
    store::read_file(path, run, all).expect("the SDK's file is readable");
    found
}

#[tokio::test]
async fn the_harness_reads_the_journal_an_sdk_wrote_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    for (run_id, crashed) in [(RUNS[0], true), (RUNS[1], true), (RUNS[0], false)] {
        assert_eq!(crashes(&path, run_id).await, crashed);
    }
    let read = |run_id: &str| -> Vec<(u64, u32, u64, String)> {
        let run = RunId(run_id.parse().unwrap());
        let entries = entries(&path, Some(run));
        let rows = entries.into_iter().map(|(of, entry)| {
            assert_eq!(of, run);
            // A stamp of this century and the next.
            assert!((1_600_000_000_000_000..4_100_000_000_000_000).contains(&entry.time.0));
            let content = v1::Entry::decode(entry.content).unwrap();
            (entry.seq, entry.attempt.0, entry.worker_seq, said(content))
        });
        rows.collect()
    };
    let row = |seq, attempt, worker_seq, said: &str| (seq, attempt, worker_seq, said.to_owned());
    let first = [
        row(1, 1, 1, "output \"piece\""),
        row(2, 1, 2, "usage 7"),
        row(3, 1, 3, "done look in-1"),
        row(4, 1, 4, "begun write 1"),
    ];
    assert_eq!(read(RUNS[1]), first);
    let rows = read(RUNS[0]);
    assert_eq!(rows[..4], first);
    // The begin of a step that runs again is not written again.
    assert_eq!(
        rows[4..],
        [
            row(5, 2, 1, "output \"piece\""),
            row(6, 2, 2, "usage 7"),
            row(7, 2, 3, "done look in-2"),
            row(8, 2, 4, "done write 1"),
        ]
    );
    assert_eq!(entries(&path, None).len(), 12);
}

fn said(entry: v1::Entry) -> String {
    match entry.kind.expect("a kind") {
        Kind::Output(it) => {
            let data = it.payload.expect("a payload").data;
            format!("output {}", String::from_utf8_lossy(&data))
        }
        Kind::Usage(it) => format!("usage {}", it.input_tokens),
        Kind::Step(it) => {
            let done = it.kind() == v1::StepKind::Done;
            let state = if done { "done" } else { "begun" };
            format!("{state} {} {}", it.name, it.key)
        }
        other => panic!("{other:?}"),
    }
}
