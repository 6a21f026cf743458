//! The agent loop beside no model at all: what it costs by itself.
//!
//! Owns the figures of arguments, of a turn with and without a durable journal, of streams by the
//! size of their events, and of putting a long conversation together.

use std::time::{Duration, Instant};

use harness_tests::provider::{Provider, Reply};
use serde_json::{Value, json};
use worker_sdk::agent_loop::{
    AgentLoop, Anthropic, ArgumentSchema, BytesOverThree, Class, Limits, Line, Machine, Message,
    Model as _, Next, Pieces, Request, Rules, ScriptedModel, Tool, ToolContext, ToolError,
    ToolOutcome, ToolResult, prepare_arguments,
};
use worker_sdk::journal::{Local, Memory};
use worker_sdk::testing;

use crate::report::{Row, median, row};

/// Rounds a figure is the median of.
const ROUNDS: usize = 9;

pub(crate) async fn all() -> Vec<Row> {
    let mut rows = arguments();
    rows.extend(turns().await);
    rows.extend(streams().await);
    rows.extend(assembly());
    rows
}

/// The median time of one of `times`, over rounds.
fn each(times: u32, mut work: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        for _ in 0..times {
            work();
        }
        begin.elapsed().as_secs_f64() / f64::from(times)
    });
    Duration::from_secs_f64(median(rounds))
}

fn arguments() -> Vec<Row> {
    let schema = ArgumentSchema::new(json!({
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "near": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
        },
        "required": ["query"],
        "additionalProperties": false,
    }))
    .expect("a schema");
    [
        ("valid", r#"{"query":"rivers","limit":3,"exact":true,"tags":["a","b"],"near":{"x":1,"y":2}}"#),
        ("mended", r#"{"query":"rivers","limit":"3","exact":"true","tags":"[\"a\"]","near":{"x":"1","y":2}}"#),
        ("refused", r#"{"query":"rivers","limit":"many","exact":1,"colour":"red"}"#),
    ]
    .into_iter()
    .map(|(name, text)| {
        let time = each(5_000, || {
            // What comes out is the same each time.
            let _ = std::hint::black_box(prepare_arguments(std::hint::black_box(text), &schema));
        });
        row(format!("arguments, {name}"), format!("{time:.1?}"), "")
    })
    .collect()
}

/// An agent that calls a tool in each of so many turns, then answers.
fn agent(turns: u32) -> AgentLoop {
    let model = ScriptedModel::by(move |request| {
        Some(if request.turn <= turns {
            Line::call("look", json!({"n": request.turn}))
        } else {
            Line::text("done")
        })
    });
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let look = |_: ToolContext, _: Value| async { Ok::<_, ToolError>("a result of a tool") };
    AgentLoop::builder(model)
        .tool(Tool::with_schema("look", "Looks.", schema, look).class(Class::SideEffect))
        .limits(Limits {
            turns: u32::MAX,
            ..Limits::default()
        })
        .build()
        .expect("an agent")
}

/// Ten turns with a tool each are twenty entries of a conversation.
const TURNS: u32 = 10;

async fn turns() -> Vec<Row> {
    let agent = agent(TURNS);
    let prompt = "go".into();
    let (mut in_memory, mut entries) = (Vec::new(), 0);
    for _ in 0..200 {
        let journal = Memory::new();
        let (ctx, _) = testing::context().journal(journal.clone()).build();
        let begin = Instant::now();
        agent.run(&ctx, &prompt).await.expect("a run");
        in_memory.push(begin.elapsed().as_secs_f64() / f64::from(TURNS + 1));
        entries = journal.entries().len();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = Local::open(folder.path().join("journal.db")).expect("a journal");
    let mut on_disk = Vec::new();
    for run in 0..20 {
        let run_id = format!("0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2{run:02x}");
        let ctx = file.attempt(&run_id).expect("an attempt").context();
        let begin = Instant::now();
        agent.run(&ctx, &prompt).await.expect("a run");
        on_disk.push(begin.elapsed().as_secs_f64() / f64::from(TURNS + 1));
    }
    let time = |times: Vec<f64>| Duration::from_secs_f64(median(times.into_iter()));
    // The last turn has no tool: its text, its usage, its answer.
    let per_turn = (entries - 3) / TURNS as usize;
    vec![
        row(
            "turn with a tool, 20 entries, journal in memory".to_owned(),
            format!("{:.1?}", time(in_memory)),
            "50 us",
        ),
        row(
            "the same, journal in a file, each entry synced".to_owned(),
            format!("{:.1?}, {per_turn} entries", time(on_disk)),
            "4 commits",
        ),
    ]
}

async fn streams() -> Vec<Row> {
    let mut rows = Vec::new();
    for bytes in [10_000, 100_000, 1_000_000, 10_000_000] {
        let text = "x".repeat(bytes);
        let event = |data: Value| format!("event: x\ndata: {data}\n\n");
        let body = event(json!({"type": "message_start", "message": {}}))
            + &event(json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": ""}}))
            + &event(json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "text_delta", "text": text}}))
            + &event(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}))
            + &event(json!({"type": "message_stop"}));
        let replies = (0..ROUNDS).map(|_| Reply::events(&*body));
        let provider = Provider::start(replies).await;
        let model = Anthropic::new("m", "k").and_then(|model| model.base_url(&provider.url()));
        let model = model.expect("a model");
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let response = model
                .complete(&Request::new("x"), &mut Pieces::ignored())
                .await;
            assert_eq!(response.expect("an answer").text().len(), bytes);
            times.push(begin.elapsed().as_secs_f64());
        }
        let time = median(times.into_iter());
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = bytes as f64 / time / 1e6;
        rows.push(row(
            format!("stream over loopback, one event of {bytes} bytes"),
            format!("{:.1?}, {rate:.0} MB/s", Duration::from_secs_f64(time)),
            "linear",
        ));
    }
    rows
}

fn assembly() -> Vec<Row> {
    let sizes = [20_u32, 1_000, 10_000];
    let figures = sizes.map(|entries| {
        let machine = fed(entries / 2);
        let time = each(200_000 / entries, || {
            std::hint::black_box(machine.messages());
        });
        row(
            format!("putting {entries} entries together"),
            format!("{time:.1?}"),
            "",
        )
    });
    figures.into()
}

/// A machine with so many turns behind it.
fn fed(turns: u32) -> Machine {
    let rules = Rules {
        limits: Limits {
            turns: u32::MAX,
            tool_calls: u32::MAX,
            ..Limits::default()
        },
        budget: worker_sdk::agent_loop::Budget {
            context_window: u64::MAX / 200,
            ..Default::default()
        },
        prices: None,
    };
    let counter = BytesOverThree;
    let mut machine = Machine::new(rules, vec![Message::user("go")], 0, &counter);
    for turn in 0..turns {
        let call = json!({"id": format!("c{turn}"), "provider": "p", "model": "m", "answered_by": "m",
            "finish": "tool_calls", "finish_raw": "", "raw": [], "usage": {},
            "blocks": [{"type": "call", "id": format!("c{turn}"), "name": "look",
                "arguments": format!("{{\"n\":{turn}}}")}]});
        machine.model_response(serde_json::from_value(call).expect("a response"), &counter);
        let Next::RunTools(planned) = machine.next() else {
            break;
        };
        let result = |call_id: String| ToolResult {
            call_id,
            text: "a result of a tool".to_owned(),
            outcome: ToolOutcome::Done,
        };
        let results = planned.into_iter().map(|planned| result(planned.call.id));
        machine.tool_results(results.collect(), &counter);
    }
    assert_eq!(machine.turns(), turns);
    machine
}
