//! What a run that goes wrong keeps over a restart of the harness: the workers it has killed, and the
//! time its attempt has; and a crowd of runs that wait when it starts anew.

use std::time::{Duration, Instant};

use harness_proto::v1::{
    self, ErrorCode, RetryPolicy, RunOptions, RunState, StartRunRequest, outcome,
};
use harness_tests::durable::{journal, kinds, run_of, start, started};
use harness_tests::raw::{connect, proto, runs};
use harness_tests::{BOUND, Harness, Port, Worker};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

/// Runs that wait when the harness starts anew.
const CROWD: usize = 10_000;

fn serve(port: &Port, data: &TempDir, config: &str) -> Harness {
    Harness::builder()
        .listen(port.address())
        .config(config)
        .argument("--data")
        .argument(data.path().to_str().expect("a path of this test"))
        .start()
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

fn retried(order: &str, policy: RetryPolicy) -> StartRunRequest {
    StartRunRequest {
        options: Some(RunOptions {
            retry_policy: Some(policy),
            ..RunOptions::default()
        }),
        ..start("puppet", order)
    }
}

/// The error a run has ended with.
fn error(run: &v1::Run) -> v1::Error {
    match run.outcome.as_ref().and_then(|it| it.outcome.as_ref()) {
        Some(outcome::Outcome::Error(error)) => error.clone(),
        other => panic!("no error: {other:?}"),
    }
}

/// Waits until a run has been given up by its second worker, and has not gone to a third.
fn wait_for_second_death(runtime: &Runtime, channel: &Channel, run_id: &str) {
    harness_tests::eventually("two workers have died of it", BOUND, || {
        let run = runtime.block_on(run_of(channel, run_id)).expect("known");
        assert!(
            run.outcome.is_none(),
            "it ended before the restart: {run:?}"
        );
        (run.attempt == 2 && run.state() == RunState::Queued).then_some(())
    });
}

#[test]
fn a_run_that_killed_two_workers_before_a_restart_is_poisoned_by_the_first_after_it() {
    let (runtime, data, port) = (runtime(), TempDir::new().expect("a folder"), Port::free());
    let puppet = harness_tests::program("puppet").display().to_string();
    let pool = format!(
        "[limits]\nreattach_window = \"0s\"\n\n[[pool]]\nagent = \"puppet\"\ncommand = [{puppet:?}]\n"
    );
    let mut harness = serve(&port, &data, &pool);
    harness.wait_for_ready("puppet", 1);
    let channel = runtime.block_on(connect(&port.address()));
    // After the second death it waits long enough to be found by the next harness.
    let policy = RetryPolicy {
        max_attempts: 10,
        initial_backoff: Some(proto(Duration::from_secs(1))),
        max_backoff: Some(proto(Duration::from_secs(1))),
        ..RetryPolicy::default()
    };
    let order = "{\"do\": \"exit\", \"code\": 3}";
    let run = runtime.block_on(started(&channel, retried(order, policy)));
    wait_for_second_death(&runtime, &channel, &run.run_id);
    harness.process().signal(harness_tests::Signal::SIGKILL);
    drop(harness);

    let _harness = serve(&port, &data, &pool);
    let channel = runtime.block_on(connect(&port.address()));
    let entries = runtime.block_on(journal(&channel, &run.run_id, BOUND));
    let run = runtime
        .block_on(run_of(&channel, &run.run_id))
        .expect("known");
    assert_eq!(error(&run).code(), ErrorCode::Poisoned, "{run:?}");
    assert!(error(&run).message.contains("killed 3 workers"), "{run:?}");
    assert_eq!(run.attempt, 3, "{:?}", kinds(&entries));
}

#[test]
fn an_attempt_keeps_its_timeout_over_a_restart() {
    let (runtime, data, port) = (runtime(), TempDir::new().expect("a folder"), Port::free());
    let config = "[limits]\nshutdown_grace = \"0s\"\n";
    let harness = serve(&port, &data, config);
    let mut worker = Worker::puppet().start(&harness);
    let channel = runtime.block_on(connect(&port.address()));
    let policy = RetryPolicy {
        max_attempts: 1,
        attempt_timeout: Some(proto(Duration::from_secs(4))),
        ..RetryPolicy::default()
    };
    let began = Instant::now();
    let run = runtime.block_on(started(&channel, retried("{\"do\": \"hang\"}", policy)));
    worker.process().wait_for_line("started ");
    harness.stop();

    let harness = serve(&port, &data, config);
    // It comes back to its attempt, which ends when it would have without the restart.
    harness.wait_for_busy("puppet", 1);
    let channel = runtime.block_on(connect(&port.address()));
    runtime.block_on(journal(&channel, &run.run_id, BOUND));
    let took = began.elapsed();
    let run = runtime
        .block_on(run_of(&channel, &run.run_id))
        .expect("known");
    let told = (run.state(), error(&run).code(), run.attempt);
    assert_eq!(told, (RunState::Failed, ErrorCode::AttemptTimeout, 1));
    let range = Duration::from_secs(4)..Duration::from_secs(6);
    assert!(range.contains(&took), "{took:?}");
    worker
        .process()
        .wait_for_line(&format!("dropped {}", run.run_id));
}

#[test]
fn ten_thousand_runs_that_wait_at_a_restart_all_end_and_take_little_memory() {
    const CALLERS: usize = 64;
    let (runtime, data, port) = (runtime(), TempDir::new().expect("a folder"), Port::free());
    let mut harness = serve(&port, &data, "");
    let channel = runtime.block_on(connect(&port.address()));
    // 80 MB, were they all in memory.
    let filling = "x".repeat(8000);
    let order = format!("{{\"do\": \"reply\", \"value\": \"{filling}\"}}");
    runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let (channel, order) = (channel.clone(), order.clone());
            callers.spawn(async move {
                for _ in (caller..CROWD).step_by(CALLERS) {
                    let request = StartRunRequest {
                        options: Some(RunOptions {
                            wait_for_agent: true,
                            ..RunOptions::default()
                        }),
                        ..start("puppet", &order)
                    };
                    runs(&channel)
                        .start_run(request)
                        .await
                        .expect("it is taken");
                }
            });
        }
        while let Some(done) = callers.join_next().await {
            done.expect("no panic");
        }
    });
    harness.process().signal(harness_tests::Signal::SIGKILL);
    drop(harness);

    let mut harness = serve(&port, &data, "");
    let fresh = harness.process().resident_bytes();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            Worker::puppet()
                .slots(16)
                .start_unattached(harness.address())
        })
        .collect();
    let channel = runtime.block_on(connect(&port.address()));
    let mut most = 0;
    harness_tests::eventually("all runs end", Duration::from_secs(240), || {
        most = most.max(harness.process().resident_bytes());
        let left = runtime.block_on(unfinished(&channel));
        (left == 0).then_some(())
    });
    drop(workers);
    let mib = |bytes: u64| bytes / (1 << 20);
    eprintln!("{} MiB at its start, {} MiB at most", mib(fresh), mib(most));
    assert!(
        mib(most.saturating_sub(fresh)) < 64,
        "{} MiB, {} MiB",
        mib(fresh),
        mib(most)
    );
    assert_eq!(runtime.block_on(succeeded(&channel)), CROWD);
}

/// Whether a run has yet to end: 0 or more.
async fn unfinished(channel: &Channel) -> usize {
    let states = [RunState::Queued, RunState::Running];
    page(channel, &states, String::new()).await.0
}

async fn succeeded(channel: &Channel) -> usize {
    let (mut count, mut token) = (0, String::new());
    loop {
        let (some, next) = page(channel, &[RunState::Succeeded], token).await;
        count += some;
        if next.is_empty() {
            return count;
        }
        token = next;
    }
}

/// How many runs a page of them has, and where the next begins.
async fn page(channel: &Channel, states: &[RunState], page_token: String) -> (usize, String) {
    let request = v1::ListRunsRequest {
        filter: Some(v1::RunFilter {
            states: states.iter().map(|state| (*state).into()).collect(),
            ..v1::RunFilter::default()
        }),
        page_size: 1000,
        page_token,
        ..v1::ListRunsRequest::default()
    };
    let page = runs(channel).list_runs(request).await.expect("a page");
    let page = page.into_inner();
    (page.runs.len(), page.next_page_token)
}
