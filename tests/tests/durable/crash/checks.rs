//! What must hold when the last harness of the crash test has come up, whatever its workers are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use harness_proto::v1::{JournalEntry, ListRunsRequest, StepKind, entry};
use harness_tests::durable::{journal, kind_of, kinds, run_of, value};
use harness_tests::raw::runs as client;
use harness_tests::step_log::{self, STEPS, What};
use tonic::transport::Channel;

use super::stage::Stage;

/// In which attempt each step of each run was recorded.
type Recorded = BTreeMap<(String, usize), u32>;

/// Every run that was acknowledged ends as it must within a bound, and its steps ran as its journal
/// says.
pub(super) async fn runs(stage: &Stage, log: &Path, bound: Duration) {
    let channel = stage.channel();
    let acknowledged = stage.acknowledged();
    assert!(!acknowledged.is_empty(), "runs were started");
    let began = Instant::now();
    let mut recorded = Recorded::new();
    for (run_id, key) in &acknowledged {
        let left = bound.saturating_sub(began.elapsed());
        let entries = journal(&channel, run_id, left).await;
        whole(run_id, &entries);
        for (step, attempt) in steps(&entries) {
            recorded.insert((run_id.clone(), step), attempt);
        }
        let run = run_of(&channel, run_id).await.expect("it is known");
        assert_eq!(&run.idempotency_key, key);
        assert_eq!(value(&run), format!("\"{key}\""));
    }
    steps_ran_once(log, &recorded);
    assert_eq!(
        listed(&channel).await,
        acknowledged.len(),
        "a run for each key"
    );
}

/// A journal holds all of a run, once.
fn whole(run_id: &str, entries: &[JournalEntry]) {
    let names = kinds(entries);
    let count = |name: &str| names.iter().filter(|kind| **kind == name).count();
    assert_eq!(names.first(), Some(&"run_started"), "{names:?}");
    let (started, ended) = (count("run_started"), count("run_ended"));
    assert_eq!((started, ended), (1, 1), "{names:?}");
    let (started, ended) = (count("attempt_started"), count("attempt_ended"));
    assert_eq!(started, ended, "{names:?}");
    let each = steps(entries)
        .iter()
        .map(|(step, _)| *step)
        .collect::<Vec<_>>();
    assert_eq!(
        each,
        (0..STEPS).collect::<Vec<_>>(),
        "steps of {run_id}: {names:?}"
    );
}

/// The steps of which a journal holds the result, in its order, and the attempt each was recorded in.
fn steps(entries: &[JournalEntry]) -> Vec<(usize, u32)> {
    let step = |told: &JournalEntry| match kind_of(told) {
        // The SDK records the begin of a step, too.
        Some(entry::Kind::Step(step)) if step.kind() == StepKind::Done => {
            let number = step.name.parse().expect("steps are named by number");
            Some((number, told.attempt))
        }
        _ => None,
    };
    entries.iter().filter_map(step).collect()
}

/// No step ran in an attempt after the one that recorded it, nor twice in one, and none of which its
/// worker was told that it is on disk was done again later. Workers of both kinds did some.
fn steps_ran_once(log: &Path, recorded: &Recorded) {
    let (mut ran, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for line in step_log::read(log) {
        let step = (line.run_id.clone(), line.step);
        let kept_in = *recorded
            .get(&step)
            .unwrap_or_else(|| panic!("no run has {line:?}"));
        kinds.insert(line.by.clone());
        match line.what {
            What::Ran => {
                assert!(
                    line.attempt <= kept_in,
                    "recorded in attempt {kept_in}: {line:?}"
                );
                assert!(ran.insert((step, line.attempt)), "ran twice: {line:?}");
            }
            What::Recorded => {
                assert!(
                    kept_in <= line.attempt,
                    "recorded in attempt {kept_in}: {line:?}"
                );
            }
        }
    }
    assert_eq!(kinds.len(), 2, "who did steps: {kinds:?}");
    for (step, attempt) in recorded {
        let key = (step.clone(), *attempt);
        assert!(ran.contains(&key), "{step:?} is recorded and never ran");
    }
}

/// How many runs are listed, page by page.
async fn listed(channel: &Channel) -> usize {
    let mut listed = 0;
    let mut page_token = String::new();
    loop {
        let request = ListRunsRequest {
            page_size: 1000,
            page_token,
            ..ListRunsRequest::default()
        };
        let page = client(channel).list_runs(request).await.expect("a page");
        let page = page.into_inner();
        listed += page.runs.len();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return listed;
        }
    }
}

/// Whoever followed a run over the restarts has read what its journal says.
pub(super) async fn followers(stage: &Stage, bound: Duration) {
    let channel = stage.channel();
    let watched = stage.take_watched();
    assert!(!watched.is_empty(), "runs were followed");
    for (run_id, seqs) in watched {
        let whole = journal(&channel, &run_id, bound).await;
        let told: Vec<u64> = whole.iter().map(|entry| entry.seq).collect();
        assert!(
            told.starts_with(&seqs),
            "run {run_id} was watched as {seqs:?}"
        );
    }
}

/// Says how much was done.
#[expect(
    clippy::print_stderr,
    reason = "the figures of a soak are for a person"
)]
pub(super) fn tell(stage: &Stage, log: &Path, (kills, workers): (u64, u64), took: Duration) {
    let mut ran = BTreeMap::<String, usize>::new();
    for line in step_log::read(log) {
        *ran.entry(line.by).or_default() += usize::from(line.what == What::Ran);
    }
    eprintln!(
        "{kills} kills of the harness and {workers} of a worker, {} runs, steps {ran:?}, {:.0} s",
        stage.acknowledged().len(),
        took.as_secs_f64()
    );
}
