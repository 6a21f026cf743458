//! Bodies of the Messages API: recorded ones where the machine has them, and ones written here.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{decode, encode, stream};
use crate::agent_loop::failure::{Answered, Failure, judge};
use crate::agent_loop::message::{Assistant, Block, Call, CallResult, Message, Source};
use crate::agent_loop::recorded::{self, Expected};
use crate::agent_loop::request::{Request, Thinking, ToolSpec};
use crate::agent_loop::response::{Finish, Response};

fn decoded(file: &str, body: &str, model: &str) -> Response {
    let response = if file.ends_with(".sse") {
        recorded::decoded(stream::Messages::new(model), &[body.as_bytes()])
    } else {
        decode::response(body, model)
    };
    response.unwrap_or_else(|error| panic!("{file}: {error:?}"))
}

const HAIKU: &str = "claude-haiku-4-5-20251001";
const SONNET: &str = "claude-sonnet-4-6";

const TABLE: [Expected; 13] = [
    Expected {
        file: "anthropic/clear_tool_uses.json",
        finish: Finish::Stop,
        raw_finish: "end_turn",
        answered_by: HAIKU,
        text: "\n\nHere's a comparison of the weather",
        calls: &[],
        usage: (859, Some(0), 132, None),
        raw: &["text"],
    },
    Expected {
        file: "anthropic/compaction.json",
        finish: Finish::Stop,
        raw_finish: "end_turn",
        answered_by: "claude-opus-4-6",
        text: "Based on our conversation history",
        calls: &[],
        // Two iterations: 60,385 and 682 in, 592 and 1,320 out.
        usage: (61_067, Some(0), 1_912, None),
        raw: &["compaction", "text"],
    },
    Expected {
        file: "anthropic/parallel_tool_use.json",
        finish: Finish::ToolCalls,
        raw_finish: "tool_use",
        answered_by: HAIKU,
        text: "I'll help you find out who is the youngest",
        calls: &[
            (
                "toolu_0167cfEnoQaPviGdVXA95zcu",
                "retrieve_entity_info",
                r#"{"name":"Alice"}"#,
            ),
            (
                "toolu_01EEe2V5HD1Ac4rKiUR4HD2T",
                "retrieve_entity_info",
                r#"{"name":"Bob"}"#,
            ),
            (
                "toolu_01XFyAjstT3966qvRynZyVPo",
                "retrieve_entity_info",
                r#"{"name":"Charlie"}"#,
            ),
            (
                "toolu_013mnQZbgtK2oe3Mo3XKJsx3",
                "retrieve_entity_info",
                r#"{"name":"Daisy"}"#,
            ),
        ],
        usage: (423, Some(0), 202, None),
        raw: &["text", "tool_use", "tool_use", "tool_use", "tool_use"],
    },
    Expected {
        file: "anthropic/parallel_tool_use_turn2.json",
        finish: Finish::Stop,
        raw_finish: "end_turn",
        answered_by: HAIKU,
        text: "Based on the retrieved information",
        calls: &[],
        usage: (771, Some(0), 77, None),
        raw: &["text"],
    },
    Expected {
        file: "anthropic/refusal.json",
        finish: Finish::Refusal,
        raw_finish: "refusal",
        answered_by: "claude-fable-5",
        text: "",
        calls: &[],
        usage: (18, Some(0), 5, None),
        raw: &[],
    },
    Expected {
        file: "anthropic/zero_arg_tool.json",
        finish: Finish::ToolCalls,
        raw_finish: "tool_use",
        answered_by: SONNET,
        text: "",
        calls: &[("toolu_REDACTED_1", "ping", "{}")],
        usage: (575, Some(0), 35, None),
        raw: &["tool_use"],
    },
    Expected {
        file: "anthropic/stream_parallel_tool_use.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_use",
        answered_by: SONNET,
        text: "I'll call both tools simultaneously right now!",
        calls: &[
            ("toolu_REDACTED_1", "lookup_harbor_label", "{}"),
            ("toolu_REDACTED_2", "lookup_orchard_label", "{}"),
        ],
        usage: (700, Some(0), 70, None),
        raw: &["text", "tool_use", "tool_use"],
    },
    Expected {
        file: "anthropic/stream_thinking_multi_block.sse",
        finish: Finish::Stop,
        raw_finish: "end_turn",
        answered_by: SONNET,
        text: "## Setting Up the Problem",
        calls: &[],
        usage: (69, Some(0), 353, Some(158)),
        raw: &["thinking", "text"],
    },
    Expected {
        file: "anthropic/stream_truncated_max_tokens.sse",
        finish: Finish::Length,
        raw_finish: "max_tokens",
        answered_by: HAIKU,
        text: "alpha\nbr",
        calls: &[],
        usage: (40, Some(0), 3, None),
        raw: &["text"],
    },
    Expected {
        file: "anthropic/stream_unicode_args.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_use",
        answered_by: SONNET,
        text: "",
        calls: &[(
            "toolu_REDACTED_1",
            "echo",
            r#"{"message": "Grüße aus 東京, from the \"naïve café\"!"}"#,
        )],
        usage: (618, Some(0), 68, None),
        raw: &["tool_use"],
    },
    Expected {
        file: "anthropic/stream_zero_arg_tool.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_use",
        answered_by: SONNET,
        text: "",
        calls: &[("toolu_REDACTED_1", "ping", "{}")],
        usage: (575, Some(0), 35, None),
        raw: &["tool_use"],
    },
    Expected {
        file: "anthropic/thinking_tool_turn1.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_use",
        answered_by: SONNET,
        text: "Sure! Let me check the current weather",
        calls: &[(
            "toolu_REDACTED_1",
            "get_weather",
            r#"{"city": "Tokyo, Japan"}"#,
        )],
        usage: (671, Some(0), 113, Some(41)),
        raw: &["thinking", "text", "tool_use"],
    },
    Expected {
        file: "anthropic/thinking_tool_turn2.sse",
        finish: Finish::Stop,
        raw_finish: "end_turn",
        answered_by: SONNET,
        text: "Here's the current weather report for **Tokyo, Japan** 🗼",
        calls: &[],
        usage: (825, Some(0), 264, Some(0)),
        raw: &["text"],
    },
];

#[test]
fn every_recorded_answer_decodes_to_what_it_holds() {
    let Some(names) = recorded::names("anthropic") else {
        println!("skipped: HARNESS_FIXTURES names no folder");
        return;
    };
    for expected in &TABLE {
        let body = recorded::body(expected.file).expect("the folder is named");
        expected.check(&decoded(expected.file, &body, "m"));
    }
    let answers = names
        .iter()
        .filter(|name| !name.contains("request") && !name.starts_with("error"));
    for name in answers {
        let name = format!("anthropic/{name}");
        assert!(
            TABLE.iter().any(|expected| expected.file == name),
            "{name} is in no row"
        );
    }
    let refusal = recorded::body("anthropic/refusal.json").expect("the folder is named");
    let note = decoded("refusal.json", &refusal, "m")
        .note
        .expect("an explanation");
    assert!(
        note.starts_with("This request triggered restrictions"),
        "{note}"
    );
    let signed = recorded::body("anthropic/thinking_tool_turn1.sse").expect("the folder is named");
    let response = decoded("x.sse", &signed, "m");
    assert_eq!(recorded::signatures(&response), ["signature_REDACTED_2"]);
}

#[test]
fn every_recorded_error_means_what_it_says() {
    for (name, status, failure) in [
        ("error_400_context_length", 400, Failure::ContextLength),
        ("error_400_validation", 400, Failure::Rejected),
        ("error_401", 401, Failure::Credentials),
        ("error_404_model", 404, Failure::Rejected),
    ] {
        let Some(body) = recorded::body(&format!("anthropic/{name}.json")) else {
            return;
        };
        let answered = Answered {
            status: Some(status),
            body: &body,
            ..Answered::default()
        };
        assert_eq!(judge(answered).failure(), failure, "{name}");
    }
}

#[test]
fn no_recorded_stream_is_complete_before_its_last_event() {
    for name in recorded::names("anthropic").into_iter().flatten() {
        if name.ends_with(".sse") {
            let body = recorded::body(&format!("anthropic/{name}")).expect("the folder is named");
            recorded::check_every_cut(&name, &body, "event: message_stop", || {
                stream::Messages::new("m")
            });
        }
    }
}

/// A stream in the shape of the recorded ones.
const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-x-1","content":[],"stop_reason":null,"usage":{"input_tokens":10,"cache_read_input_tokens":4,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Größe "}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"first"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln+/="}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"look","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"for\": \"東"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"京\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":25}}

event: message_stop
data: {"type":"message_stop"}

"#;

#[test]
fn a_streamed_answer_is_put_together_and_cut_anywhere_it_is_none() {
    let response = decoded("x.sse", STREAM, "claude-x");
    assert_eq!(response.finish, Finish::ToolCalls);
    assert_eq!(response.calls()[0].arguments, r#"{"for": "東京"}"#);
    assert_eq!(recorded::signatures(&response), ["c2ln+/="]);
    assert_eq!(response.usage.input_tokens, Some(14));
    assert_eq!(response.usage.cached_tokens, Some(4));
    assert_eq!(response.usage.output_tokens, Some(25));
    assert_eq!(response.raw[0]["thinking"], "Größe first");
    assert_eq!(response.raw[1]["input"], json!({"for": "東京"}));
    recorded::check_every_cut("written here", STREAM, "event: message_stop", || {
        stream::Messages::new("m")
    });
}

#[test]
fn an_error_in_the_stream_is_judged_like_one_outside() {
    let begin = &STREAM[..STREAM
        .find("event: message_delta")
        .expect("the end of the message")];
    for (kind, failure) in [
        ("overloaded_error", Failure::Transient),
        ("api_error", Failure::Transient),
        ("rate_limit_error", Failure::Transient),
        ("billing_error", Failure::Billing),
        ("invalid_request_error", Failure::Rejected),
    ] {
        let error = format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"x\"}}}}\n\n"
        );
        let parts = [begin.as_bytes(), error.as_bytes()];
        let result = recorded::decoded(stream::Messages::new("m"), &parts);
        assert_eq!(result.expect_err(kind).failure(), failure, "{kind}");
    }
}

#[test]
fn an_answer_that_says_nothing_of_its_end_is_no_answer() {
    for (body, failure) in [
        (
            r#"{"type":"message","content":[],"stop_reason":null}"#,
            Failure::Cut,
        ),
        (
            r#"{"type":"message","content":[],"stop_reason":"of_its_own"}"#,
            Failure::Unreadable,
        ),
        (
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
            Failure::Transient,
        ),
        ("<html>", Failure::Unreadable),
        ("{}", Failure::Cut),
    ] {
        assert_eq!(
            decode::response(body, "m").expect_err(body).failure(),
            failure,
            "{body}"
        );
    }
}

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
