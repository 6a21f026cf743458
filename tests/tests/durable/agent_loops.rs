//! The agent loop under a durable run: its worker dies in the middle of a tool.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness_proto::v1::{JournalEntry, entry};
use harness_tests::durable::{journal, kind_of, run_of, start, started, value};
use harness_tests::raw::connect;
use harness_tests::{BOUND, Harness, eventually};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use worker_sdk::agent_loop::{
    AgentLoop, Class, Line, Message, Request, ScriptedModel, Tool, ToolContext, ToolError,
};

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
