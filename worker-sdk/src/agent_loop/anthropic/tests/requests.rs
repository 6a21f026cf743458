//! Requests, held against recorded ones in meaning.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::encode;
use super::{STREAM, decoded};
use crate::agent_loop::message::{Assistant, Block, Call, CallResult, Message, Source};
use crate::agent_loop::recorded;
use crate::agent_loop::request::{Request, Thinking, ToolSpec};
use crate::agent_loop::response::Response;

/// A request in one form for all that mean the same.
fn meaning(mut body: Value) -> Value {
    if body["tool_choice"] == json!({"type": "auto"}) {
        body.as_object_mut()
            .expect("an object")
            .remove("tool_choice");
    }
    body["system"] = plain(&body["system"]);
    for message in body["messages"].as_array_mut().expect("messages") {
        for block in message["content"].as_array_mut().expect("blocks") {
            let block = block.as_object_mut().expect("a block");
            if block.get("is_error") == Some(&json!(false)) {
                block.remove("is_error");
            }
            // Who called the tool is the provider's own note.
            block.remove("caller");
            if let Some(content) = block.get("content").map(plain) {
                block.insert("content".to_owned(), content);
            }
        }
    }
    body
}

/// Text, whether it stands alone or in blocks.
fn plain(value: &Value) -> Value {
    match value.as_array() {
        Some(blocks) => Value::String(
            blocks
                .iter()
                .filter_map(|block| block["text"].as_str())
                .collect(),
        ),
        None => value.clone(),
    }
}

fn tool(name: &str, description: &str, parameters: Value) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters,
    }
}

fn results(response: &Response, texts: &[&str]) -> Message {
    let results = response
        .calls()
        .into_iter()
        .zip(texts)
        .map(|(call, text)| CallResult {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            text: (*text).to_owned(),
            is_error: false,
        });
    Message::Tools {
        results: results.collect(),
    }
}

/// A request that says what a recorded one says, with these messages behind the first.
fn like(recorded: &Value, tools: Vec<ToolSpec>, behind: Vec<Message>) -> Request {
    let first = recorded["messages"][0]["content"][0]["text"]
        .as_str()
        .expect("a text");
    let mut request = Request::new(first);
    request.messages.extend(behind.into_iter().map(Arc::new));
    request.system = plain(&recorded["system"]).as_str().map(Arc::from);
    request.tools = tools.into();
    let cap = recorded["max_tokens"].as_u64().expect("a cap");
    request.max_output_tokens = u32::try_from(cap).expect("a small cap");
    request.stream = recorded["stream"] == json!(true);
    request
}

#[test]
fn recorded_requests_are_made_again_in_meaning() {
    let Some(recorded) = recorded::body("anthropic/parallel_tool_use.request.json") else {
        return;
    };
    let read = |name: &str| recorded::body(&format!("anthropic/{name}")).expect("a body");
    let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");

    let first = parsed(&recorded);
    let model = "claude-haiku-4-5";
    let schema = first["tools"][0]["input_schema"].clone();
    let description = "Get the knowledge about the given entity.";
    let tools = || vec![tool("retrieve_entity_info", description, schema.clone())];
    let request = like(&first, tools(), vec![]);
    assert_eq!(meaning(encode::request(&request, model)), meaning(first));

    let second = parsed(&read("parallel_tool_use_turn2.request.json"));
    let answer = decoded("x.json", &read("parallel_tool_use.json"), model);
    let texts = [
        "alice is bob's wife",
        "bob is alice's husband",
        "charlie is alice's son",
        "daisy is bob's daughter and charlie's younger sister",
    ];
    let behind = vec![Message::Assistant(answer.said()), results(&answer, &texts)];
    let request = like(&second, tools(), behind);
    assert_eq!(meaning(encode::request(&request, model)), meaning(second));

    let third = parsed(&read("thinking_tool_turn2.request.json"));
    let model = "claude-sonnet-4-6";
    let answer = decoded("x.sse", &read("thinking_tool_turn1.sse"), model);
    let schema = third["tools"][0]["input_schema"].clone();
    let description = "Get the current weather for a city. Must be called for weather questions.";
    let weather =
        "Weather in Tokyo, Japan: 72F (22C), sunny with light clouds, humidity 45%, wind 8 mph NW";
    let behind = vec![
        Message::Assistant(answer.said()),
        results(&answer, &[weather]),
    ];
    let mut request = like(
        &third,
        vec![tool("get_weather", description, schema)],
        behind,
    );
    request.thinking = Thinking::Adaptive;
    assert_eq!(meaning(encode::request(&request, model)), meaning(third));
}

#[test]
fn thinking_goes_back_to_its_own_model_only() {
    let said = decoded("x.sse", STREAM, "claude-x").said();
    let mut request = Request::new("look");
    request.messages.push(Arc::new(Message::Assistant(said)));
    let own = encode::request(&request, "claude-x");
    assert_eq!(own["messages"][1]["content"][0]["signature"], "c2ln+/=");
    let other = encode::request(&request, "claude-y");
    assert_eq!(other["messages"][1]["content"][0]["type"], "tool_use");
}

#[test]
fn what_could_not_be_read_goes_back_as_it_was_under_the_id_of_the_run() {
    let call = Call {
        id: "call_2_0".to_owned(),
        name: "look".to_owned(),
        arguments: "{\"a".to_owned(),
    };
    let raw = json!({"type": "tool_use", "id": "", "name": "look", "input": "{\"a"});
    let said = Assistant {
        blocks: vec![Block::Call(call)],
        source: Some(Source {
            provider: "anthropic".to_owned(),
            model: "m".to_owned(),
            raw: vec![raw],
        }),
    };
    let mut request = Request::new("look");
    request.messages.push(Arc::new(Message::Assistant(said)));
    let block = &encode::request(&request, "m")["messages"][1]["content"][0];
    assert_eq!(block["id"], "call_2_0");
    assert_eq!(block["input"], json!({"unreadable_arguments": "{\"a"}));
}

#[test]
fn results_stand_first_in_one_message_and_a_budget_is_beside_the_answer() {
    let mut request = Request::new("look");
    let results = Message::Tools {
        results: vec![CallResult {
            call_id: "functions.look:0".to_owned(),
            tool: "look".to_owned(),
            text: "no".to_owned(),
            is_error: true,
        }],
    };
    request.messages.push(Arc::new(results));
    request.messages.push(Arc::new(Message::user("go on")));
    request.messages.remove(0);
    request.thinking = Thinking::Budget(2_000);
    let body = encode::request(&request, "m");
    let content = body["messages"][0]["content"].as_array().expect("blocks");
    assert_eq!(content[0]["tool_use_id"], "functions_look_0");
    assert_eq!(content[0]["is_error"], true);
    assert_eq!(content[1]["text"], "go on");
    assert_eq!(body["max_tokens"], 6_096);
    assert_eq!(body["thinking"]["budget_tokens"], 2_000);
}
