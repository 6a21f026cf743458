//! The agent loop under a durable run: its worker dies in the middle of a tool, its caller cancels
//! it, its deadline passes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness_proto::v1::{CancelRunRequest, JournalEntry, RunOptions, RunState, entry};
use harness_tests::durable::{journal, kind_of, run_of, start, started, value};
use harness_tests::raw::{SOON, connect, runs, within};
use harness_tests::{BOUND, Harness, eventually};
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tonic::transport::Channel;
use worker_sdk::agent_loop::{
    AgentLoop, CallState, Class, Line, Message, Request, ScriptedModel, Tool, ToolContext,
    ToolError,
};
use worker_sdk::journal::{Entry, Recorded};

const AGENT: &str = "loop";

/// What happened outside: effects by idempotency key, model calls by turn; and whether tools may
/// come to their end.
#[derive(Clone)]
struct World {
    effects: Arc<Mutex<BTreeMap<String, u32>>>,
    turns: Arc<Mutex<BTreeMap<u32, u32>>>,
    gate: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Write {
    n: u32,
}

impl World {
    fn new() -> Self {
        Self {
            effects: Arc::default(),
            turns: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }

    fn effects(&self) -> BTreeMap<String, u32> {
        self.effects.lock().expect("no panic").clone()
    }

    /// Looks, writes twice, and says what the last write said.
    fn agent(&self) -> AgentLoop {
        let turns = Arc::clone(&self.turns);
        let model = ScriptedModel::by(move |request| {
            *turns
                .lock()
                .expect("no panic")
                .entry(request.turn)
                .or_default() += 1;
            Some(match request.turn {
                1 => Line::text("Let me look.").and(Line::call("look", json!({"n": 0}))),
                turn @ (2 | 3) => Line::call("write", json!({"n": turn - 1})),
                _ => Line::text(last_result(request)),
            })
        });
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let look = |_: ToolContext, _: Value| async { Ok::<_, ToolError>("seen") };
        let world = self.clone();
        let write = move |ctx: ToolContext, write: Write| {
            let world = world.clone();
            async move {
                let key = ctx.idempotency_key().to_owned();
                *world
                    .effects
                    .lock()
                    .expect("no panic")
                    .entry(key)
                    .or_default() += 1;
                world.gate.acquire().await?.forget();
                Ok(format!("written {}", write.n))
            }
        };
        AgentLoop::builder(model)
            .tool(Tool::with_schema("look", "Looks.", schema.clone(), look).class(Class::ReadOnly))
            .tool(Tool::with_schema("write", "Writes.", schema, write))
            .build()
            .expect("an agent")
    }
}

fn last_result(request: &Request) -> String {
    match request.messages.last().map(|message| &**message) {
        Some(Message::Tools { results }) => results[0].text.clone(),
        other => panic!("{other:?}"),
    }
}

fn attach(runtime: &Runtime, agent: AgentLoop, address: &str) -> tokio::task::AbortHandle {
    let worker = worker_sdk::Worker::builder(agent)
        .name(AGENT)
        .connect(address)
        .reconnect_waits(Duration::from_millis(10), Duration::from_millis(100));
    runtime
        .spawn(worker.run_until(std::future::pending()))
        .abort_handle()
}

/// The steps of a journal: name, key, and whether it is the end of the step.
fn steps(entries: &[JournalEntry]) -> Vec<String> {
    let step = |entry| match kind_of(entry) {
        Some(entry::Kind::Step(step)) => Some(format!("{} {}", step.name, step.key)),
        _ => None,
    };
    entries.iter().filter_map(step).collect()
}

#[test]
fn a_run_goes_on_at_the_first_step_that_is_not_recorded_when_its_worker_dies() {
    let runtime = Runtime::new().expect("a runtime");
    let (data, world) = (TempDir::new().expect("a folder"), World::new());
    let harness = Harness::builder()
        .config("[limits]\nreattach_window = \"0s\"\n")
        .argument("--data")
        .argument(data.path().to_str().expect("a path of this test"))
        .start();
    let first = attach(&runtime, world.agent(), harness.address());
    harness.wait_for_ready(AGENT, 1);
    let channel = runtime.block_on(connect(harness.address()));
    let run = runtime.block_on(started(&channel, start(AGENT, "\"go\"")));
    world.gate.add_permits(1);
    eventually("the second write has its effect", BOUND, || {
        (world.effects().len() == 2).then_some(())
    });
    first.abort();
    harness.wait_for_ready(AGENT, 0);
    let _second = attach(&runtime, world.agent(), harness.address());

    let entries = runtime.block_on(journal(&channel, &run.run_id, BOUND));
    let run = runtime
        .block_on(run_of(&channel, &run.run_id))
        .expect("known");
    assert_eq!(run.attempt, 2);
    let answer: Value = serde_json::from_str(&value(&run)).expect("an answer");
    let text = answer["text"].as_str().expect("a text");
    assert!(text.contains("outcome is unknown"), "{text}");
    assert_eq!(
        (&answer["turns"], &answer["tool_calls"]),
        (&json!(4), &json!(3))
    );
    let once = |counts: Vec<u32>| counts.iter().all(|count| *count == 1);
    assert!(
        once(world.effects().into_values().collect()),
        "{:?}",
        world.effects()
    );
    let turns = world.turns.lock().expect("no panic").clone();
    assert_eq!(turns.len(), 4);
    assert!(
        once(turns.into_values().collect()),
        "no model call is made twice"
    );
    assert_eq!(
        steps(&entries),
        [
            "model turn-1",
            "tool/look call_1_0",
            "model turn-2",
            "tool/write call_2_0",
            "tool/write call_2_0",
            "model turn-3",
            "tool/write call_3_0",
            "model turn-4",
        ]
    );
}

/// A run that is in its second write, which nobody lets come to its end.
struct InAWrite {
    runtime: Runtime,
    harness: Harness,
    _data: TempDir,
    world: World,
    channel: Channel,
    run_id: String,
}

impl InAWrite {
    fn new(options: RunOptions) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let (data, world) = (TempDir::new().expect("a folder"), World::new());
        let harness = Harness::builder()
            .argument("--data")
            .argument(data.path().to_str().expect("a path of this test"))
            .start();
        attach(&runtime, world.agent(), harness.address());
        harness.wait_for_ready(AGENT, 1);
        let channel = runtime.block_on(connect(harness.address()));
        let mut request = start(AGENT, "\"go\"");
        request.options = Some(options);
        world.gate.add_permits(1);
        let run = runtime.block_on(started(&channel, request));
        eventually("the second write has its effect", BOUND, || {
            (world.effects().len() == 2).then_some(())
        });
        Self {
            runtime,
            harness,
            _data: data,
            world,
            channel,
            run_id: run.run_id,
        }
    }

    /// The run ends like this, nothing of it goes on, all of it is known, and its slot is free.
    fn check_end(&self, state: RunState) {
        let watched = journal(&self.channel, &self.run_id, BOUND);
        let entries = self.runtime.block_on(watched);
        let run = self.runtime.block_on(run_of(&self.channel, &self.run_id));
        assert_eq!(run.expect("known").state(), state);
        self.harness.wait_for_busy(AGENT, 0);

        // What would go on could do so now, and does not: another run on the slot is through.
        self.world.gate.add_permits(10);
        let request = start(AGENT, "\"go\"");
        let other = self.runtime.block_on(started(&self.channel, request));
        let watched = journal(&self.channel, &other.run_id, BOUND);
        self.runtime.block_on(watched);
        let other = self.runtime.block_on(run_of(&self.channel, &other.run_id));
        assert_eq!(other.expect("known").state(), RunState::Succeeded);
        let effects = self.world.effects();
        let of_run = effects.keys().filter(|key| key.starts_with(&self.run_id));
        assert_eq!((of_run.count(), effects.len()), (2, 4), "{effects:?}");

        let recorded = entries.iter().filter_map(|entry| {
            let bytes = entry.entry.as_ref()?.encode_to_vec();
            Some(Recorded::new(entry.seq, 1, Entry::from_bytes(&bytes)?))
        });
        let recorded: Vec<Recorded> = recorded.collect();
        let standing = self.world.agent().standing(&"go".into(), &recorded);
        let states: Vec<CallState> = standing.tools.iter().map(|tool| tool.state).collect();
        use CallState::{Finished, Unknown};
        assert_eq!(states, [Finished, Finished, Unknown]);
        assert_eq!((standing.is_ended, standing.turns), (false, 3));
        let Some(Message::Tools { results }) = standing.messages.last().map(|last| &**last) else {
            panic!("{:?}", standing.messages);
        };
        assert_eq!(results[0].text, "[aborted by caller]");
        assert_eq!(
            steps(&entries).last().map(String::as_str),
            Some("tool/write call_3_0"),
            "its begin, and nothing behind it"
        );
    }
}

#[test]
fn a_loop_that_its_caller_cancels_stops_in_the_tool_and_frees_its_slot() {
    let stage = InAWrite::new(RunOptions::default());
    let cancel = CancelRunRequest {
        run_id: stage.run_id.clone(),
        ..CancelRunRequest::default()
    };
    let mut runs = runs(&stage.channel);
    let told = stage
        .runtime
        .block_on(within(SOON, runs.cancel_run(cancel)));
    told.expect("it is cancelled");
    stage.check_end(RunState::Cancelled);
}

#[test]
fn a_loop_whose_deadline_passes_stops_in_the_tool_and_frees_its_slot() {
    let timeout = prost_types::Duration {
        seconds: 3,
        nanos: 0,
    };
    let stage = InAWrite::new(RunOptions {
        timeout: Some(timeout),
        ..RunOptions::default()
    });
    stage.check_end(RunState::TimedOut);
}
