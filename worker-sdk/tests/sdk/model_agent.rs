//! An agent that is a language model, on a harness with limits of its own.

use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::attach_request::Frame as In;
use prost::Message as _;
use serde_json::{Value, json};
use worker_sdk::agent_loop::{AgentLoop, Class, Line, ScriptedModel, Tool, ToolContext, ToolError};

use crate::fake::Fake;
use crate::subject::{builder, start};

const ENTRY_BYTES_MAX: u64 = 3_000;

fn agent() -> AgentLoop {
    let model = ScriptedModel::new([
        Line::call("look", json!({})),
        Line::text("done ".repeat(200)),
    ]);
    let schema = json!({"type": "object"});
    let look = |_: ToolContext, _: Value| async { Ok::<_, ToolError>("x".repeat(100_000)) };
    AgentLoop::builder(model)
        .tool(Tool::with_schema("look", "Looks.", schema, look).class(Class::ReadOnly))
        .build()
        .unwrap()
}

#[tokio::test]
async fn what_a_tool_returns_fits_into_the_entries_the_harness_takes() {
    let mut fake = Fake::start().await;
    let _worker = start(builder(agent(), &fake.address));
    let mut call = fake.call().await;
    let limits = v1::SlotLimits {
        entry_bytes: ENTRY_BYTES_MAX,
        ..Default::default()
    };
    call.welcome_with(Duration::from_secs(5), limits).await;
    call.request("run", "\"go\"").await;
    let mut result = None;
    let outcome = loop {
        match call.frame().await {
            In::Append(append) => {
                let entry = append.entry.unwrap();
                assert!(entry.encoded_len() as u64 <= ENTRY_BYTES_MAX, "{entry:?}");
                if let Some(v1::entry::Kind::Step(step)) = entry.kind {
                    call.acknowledge(append.worker_seq).await;
                    result = Some(step)
                        .filter(|step| step.name == "tool/look")
                        .or(result);
                }
            }
            In::Reply(reply) => break reply.outcome.unwrap(),
            In::Heartbeat(_) => {}
            other => panic!("an append or the reply, not {other:?}"),
        }
    };
    assert!(
        matches!(outcome, v1::reply::Outcome::Value(_)),
        "{outcome:?}"
    );
    let result = result.expect("the result of the tool").encode_to_vec();
    let told = String::from_utf8_lossy(&result);
    assert!(told.contains("100000 bytes"), "{told}");
    assert!(result.len() > 2_000, "as much as there is room for");
}
