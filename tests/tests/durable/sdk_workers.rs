//! Workers of the SDK under durable runs: their call breaks, their harness is started anew, they
//! die, or they are away for too long.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness_proto::v1::{self, JournalEntry, entry};
use harness_tests::durable::{journal, kind_of, kinds, run_of, start, started, value};
use harness_tests::raw::{SOON, connect};
use harness_tests::{BOUND, Harness, Proxy, Signal, Way, Worker, eventually};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use worker_sdk::{Agent, Context, Error, StepError, agent_fn};

const AGENT: &str = "steps";

/// The world outside: which steps had their effect, by idempotency key, and whether work may go on.
#[derive(Clone)]
struct World {
    effects: Arc<Mutex<Vec<String>>>,
    gate: Arc<Semaphore>,
}

impl World {
    fn new() -> Self {
        Self {
            effects: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }

    fn effects(&self) -> Vec<String> {
        self.effects.lock().expect("no panic").clone()
    }

    #[track_caller]
    fn wait_for_effects(&self, count: usize) {
        eventually("the steps have their effects", BOUND, || {
            (self.effects().len() >= count).then_some(())
        });
    }

    /// Everything has happened once.
    #[track_caller]
    fn assert_once(&self, count: usize) {
        let effects = self.effects();
        let different: BTreeSet<&String> = effects.iter().collect();
        assert_eq!(
            (effects.len(), different.len()),
            (count, count),
            "{effects:?}"
        );
    }

    /// An agent whose request is a number of steps. Each has its effect, which must not happen
    /// twice, is told as output, and waits to be let on.
    fn agent(&self) -> impl Agent {
        let world = self.clone();
        agent_fn(move |ctx: Context, steps: u64| {
            let world = world.clone();
            async move {
                for number in 1..=steps {
                    let effects = &world.effects;
                    let step = ctx.step("write", |key| async move {
                        effects.lock().expect("no panic").push(key);
                        Ok(number)
                    });
                    let written: u64 = match step.side_effect().await {
                        Err(StepError::OutcomeUnknown { .. }) => 0,
                        written => written?,
                    };
                    ctx.output(written).await?;
                    world.gate.acquire().await?.forget();
                }
                Ok(steps)
            }
        })
    }
}

/// A worker of this process, as long as it is not aborted.
fn attach(
    runtime: &Runtime,
    agent: impl Agent,
    address: &str,
    slots: usize,
) -> JoinHandle<Result<(), Error>> {
    let waits = (Duration::from_millis(10), Duration::from_millis(100));
    let worker = worker_sdk::Worker::builder(agent)
        .name(AGENT)
        .slots(slots)
        .connect(address)
        .reconnect_waits(waits.0, waits.1);
    runtime.spawn(worker.run_until(std::future::pending()))
}

fn serve(data: &TempDir, config: &str, listen: Option<&str>) -> Harness {
    let builder = Harness::builder()
        .config(config)
        .argument("--data")
        .argument(data.path().to_str().expect("a path of this test"));
    match listen {
        Some(address) => builder.listen(address),
        None => builder,
    }
    .start()
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

/// The journal of a run whose one attempt answered with this, every piece of output told once.
#[track_caller]
fn assert_done(runtime: &Runtime, channel: &Channel, run_id: &str, steps: u64) {
    let entries = runtime.block_on(journal(channel, run_id, BOUND));
    let run = runtime.block_on(run_of(channel, run_id)).expect("known");
    assert_eq!((value(&run), run.attempt), (steps.to_string(), 1));
    let starts = kinds(&entries)
        .iter()
        .filter(|kind| **kind == "attempt_started")
        .count();
    assert_eq!(starts, 1);
    assert_eq!(outputs(&entries), (1..=steps).collect::<Vec<_>>());
}

fn outputs(entries: &[JournalEntry]) -> Vec<u64> {
    let output = |entry| match kind_of(entry) {
        Some(entry::Kind::Output(output)) => output.payload.as_ref(),
        _ => None,
    };
    let read = |payload: &v1::Payload| serde_json::from_slice(&payload.data).expect("a number");
    entries.iter().filter_map(output).map(read).collect()
}

#[test]
fn a_call_that_breaks_is_resumed_and_each_entry_arrives_once() {
    for (how, breaks) in [
        ("cut", Proxy::cut as fn(&Proxy)),
        ("closed", Proxy::close),
        ("reset", Proxy::reset_calls),
    ] {
        let (runtime, data, world) = (runtime(), TempDir::new().expect("a folder"), World::new());
        let harness = serve(&data, "", None);
        let proxy = Proxy::to(harness.address());
        let _worker = attach(&runtime, world.agent(), proxy.address(), 1);
        harness.wait_for_ready(AGENT, 1);
        let channel = runtime.block_on(connect(harness.address()));
        let run = runtime.block_on(started(&channel, start(AGENT, "8")));
        for done in [2, 4, 6] {
            world.wait_for_effects(done - 1);
            world.gate.add_permits(2);
            // Wherever it is between its entries.
            breaks(&proxy);
        }
        world.gate.add_permits(8);
        assert_done(&runtime, &channel, &run.run_id, 8);
        world.assert_once(8);
        harness.wait_for_ready(AGENT, 1);
        assert!(how == "reset" || proxy.accepted() > 1, "{how}");
    }
}

#[test]
fn a_reply_whose_acknowledgement_is_lost_is_taken_once() {
    let (runtime, data, world) = (runtime(), TempDir::new().expect("a folder"), World::new());
    let harness = serve(&data, "", None);
    let proxy = Proxy::to(harness.address());
    let _worker = attach(&runtime, world.agent(), proxy.address(), 1);
    harness.wait_for_ready(AGENT, 1);
    let channel = runtime.block_on(connect(harness.address()));
    for again in 1..=5 {
        let run = runtime.block_on(started(&channel, start(AGENT, "1")));
        world.wait_for_effects(again);
        // Its output, too, is acknowledged or not by then; the reply is not.
        proxy.cut_after(Way::ToPeer, 1);
        world.gate.add_permits(1);
        assert_done(&runtime, &channel, &run.run_id, 1);
        harness.wait_for_ready(AGENT, 1);
    }
    world.assert_once(5);
}

#[test]
fn restarts_of_the_harness_stop_no_work_and_repeat_none() {
    const SLOTS: usize = 6;
    let (runtime, data, world) = (runtime(), TempDir::new().expect("a folder"), World::new());
    let config = "[limits]\nshutdown_grace = \"100ms\"\n";
    let mut harness = serve(&data, config, None);
    let address = harness.address().to_owned();
    let _worker = attach(&runtime, world.agent(), &address, SLOTS);
    harness.wait_for_ready(AGENT, SLOTS as u64);
    let channel = runtime.block_on(connect(&address));
    let runs: Vec<String> = (0..SLOTS)
        .map(|_| {
            runtime
                .block_on(started(&channel, start(AGENT, "6")))
                .run_id
        })
        .collect();
    for restart in 1..=3 {
        world.wait_for_effects(restart * SLOTS);
        world.gate.add_permits(SLOTS);
        harness.stop();
        // While it is away the agents go on until they have something to write.
        harness = serve(&data, config, Some(&address));
    }
    world.gate.add_permits(6 * SLOTS);
    let channel = runtime.block_on(connect(&address));
    for run_id in &runs {
        assert_done(&runtime, &channel, run_id, 6);
    }
    world.assert_once(6 * SLOTS);
    harness.wait_for_ready(AGENT, SLOTS as u64);
}

#[test]
fn what_a_worker_that_died_has_recorded_is_not_done_again() {
    let (runtime, data, world) = (runtime(), TempDir::new().expect("a folder"), World::new());
    let harness = serve(&data, "[limits]\nreattach_window = \"0s\"\n", None);
    let first = attach(&runtime, world.agent(), harness.address(), 1);
    harness.wait_for_ready(AGENT, 1);
    let channel = runtime.block_on(connect(harness.address()));
    let run = runtime.block_on(started(&channel, start(AGENT, "4")));
    world.gate.add_permits(1);
    world.wait_for_effects(2);
    first.abort();
    harness.wait_for_ready(AGENT, 0);
    let _second = attach(&runtime, world.agent(), harness.address(), 1);
    world.gate.add_permits(4);
    let entries = runtime.block_on(journal(&channel, &run.run_id, BOUND));
    let run = runtime
        .block_on(run_of(&channel, &run.run_id))
        .expect("known");
    assert_eq!((value(&run), run.attempt), ("4".to_owned(), 2));
    world.assert_once(4);
    let told = outputs(&entries);
    // Whether the second result got on disk before the first worker died is open.
    let second = &told[told.len() - 4..];
    assert!(second == [1, 2, 3, 4] || second == [1, 0, 3, 4], "{told:?}");
}

#[test]
fn a_worker_that_was_suspended_past_its_window_is_told_that_another_has_the_run() {
    let (runtime, data) = (runtime(), TempDir::new().expect("a folder"));
    let config = "[limits]\nheartbeat_interval = \"200ms\"\nreattach_window = \"300ms\"\n";
    let harness = serve(&data, config, None);
    let mut first = Worker::puppet().start(&harness);
    let channel = runtime.block_on(connect(harness.address()));
    let order = "{\"do\": \"hang\"}";
    let run = runtime.block_on(started(&channel, start("puppet", order)));
    first.process().wait_for_line("started ");
    first.process().signal(Signal::SIGSTOP);
    let mut second = Worker::puppet().start_unattached(harness.address());
    second
        .process()
        .wait_for_line(&format!("started {}", run.run_id));
    let attempt = || {
        runtime
            .block_on(run_of(&channel, &run.run_id))
            .expect("known")
            .attempt
    };
    assert_eq!(attempt(), 2);
    first.process().signal(Signal::SIGCONT);
    // It tries to resume, hears that another attempt exists, and stops.
    first
        .process()
        .wait_for_line(&format!("dropped {}", run.run_id));
    harness.wait_for_ready("puppet", 1);
    assert_eq!(attempt(), 2);
    let cancel = v1::CancelRunRequest {
        run_id: run.run_id.clone(),
        ..v1::CancelRunRequest::default()
    };
    let mut runs = harness_tests::raw::runs(&channel);
    let cancelled = runtime.block_on(harness_tests::raw::within(SOON, runs.cancel_run(cancel)));
    cancelled.expect("it is cancelled");
    second
        .process()
        .wait_for_line(&format!("dropped {}", run.run_id));
}

#[test]
fn a_late_reply_of_a_worker_that_was_suspended_under_steps_is_refused() {
    let (runtime, data) = (runtime(), TempDir::new().expect("a folder"));
    let config = "[limits]\nheartbeat_interval = \"200ms\"\nreattach_window = \"300ms\"\n";
    let harness = serve(&data, config, None);
    let mut first = Worker::puppet().start(&harness);
    let channel = runtime.block_on(connect(harness.address()));
    let order = "{\"do\": \"step\", \"ms\": 1500}";
    let run = runtime.block_on(started(&channel, start("puppet", order)));
    let stepped = format!("stepped {}", run.run_id);
    first.process().wait_for_line(&stepped);
    first.process().signal(Signal::SIGSTOP);
    let mut second = Worker::puppet().start_unattached(harness.address());
    second.process().wait_for_line(&stepped);
    // Its reply is due at once, and the other's is not.
    first.process().signal(Signal::SIGCONT);
    harness.wait_for_ready("puppet", 1);
    let entries = runtime.block_on(journal(&channel, &run.run_id, BOUND));
    harness.wait_for_ready("puppet", 2);
    let run = runtime
        .block_on(run_of(&channel, &run.run_id))
        .expect("known");
    let (one, other) = (first.process().pid(), second.process().pid());
    assert_eq!((value(&run), run.attempt), (format!("[{one},{other}]"), 2));
    let count = |kind: &str| kinds(&entries).iter().filter(|it| **it == kind).count();
    assert_eq!((count("attempt_started"), count("run_ended")), (2, 1));
    assert_eq!(kinds(&entries).last(), Some(&"run_ended"));
}
