//! Bodies of chat completions: recorded ones where the machine has them, and ones written here.

mod pieces;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Codec as _, OpenAi, OutputCap, decode, encode, stream};
use crate::agent_loop::failure::{Answered, Failure, judge};
use crate::agent_loop::message::{CallResult, Message};
use crate::agent_loop::recorded::{self, Expected};
use crate::agent_loop::request::{Request, ToolChoice, ToolSpec};
use crate::agent_loop::response::{Finish, Response};

fn streamed(body: &str) -> Response {
    recorded::decoded(stream::Chunks::new("m"), &[body.as_bytes()]).expect("a whole stream")
}

const TWO_CALLS: &[(&str, &str, &str)] = &[
    ("call_REDACTED_1", "lookup_harbor_label", "{}"),
    ("call_REDACTED_2", "lookup_orchard_label", "{}"),
];
const GPT_4O: &str = "gpt-4o-2024-08-06";

const TABLE: [Expected; 6] = [
    Expected {
        file: "openai-chat/stream_parallel_tool_calls.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_calls",
        answered_by: GPT_4O,
        text: "",
        calls: TWO_CALLS,
        usage: (157, Some(0), 45, Some(0)),
        raw: &["assistant"],
    },
    Expected {
        file: "openai-chat/stream_two_tool_calls_turn1.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_calls",
        answered_by: GPT_4O,
        text: "",
        calls: TWO_CALLS,
        usage: (157, Some(0), 45, Some(0)),
        raw: &["assistant"],
    },
    Expected {
        file: "openai-chat/stream_two_tool_calls_turn2.sse",
        finish: Finish::Stop,
        raw_finish: "stop",
        answered_by: GPT_4O,
        text: "The harbor label is \"crimson-harbor\" and the orchard label is \"silver-orchard\".",
        calls: &[],
        usage: (225, Some(0), 23, Some(0)),
        raw: &["assistant"],
    },
    Expected {
        file: "openai-chat/stream_refusal.sse",
        finish: Finish::Refusal,
        raw_finish: "stop",
        answered_by: GPT_4O,
        text: "I'm very sorry, but I can't assist with that.",
        calls: &[],
        usage: (49, Some(0), 12, Some(0)),
        raw: &["assistant"],
    },
    Expected {
        file: "openai-chat/stream_tool_truncated_mid_args.sse",
        finish: Finish::Length,
        raw_finish: "length",
        answered_by: "gpt-4o-mini-2024-07-18",
        text: "",
        calls: &[(
            "call_REDACTED_1",
            "file_report",
            "{\"summary\":\"The cache warmer raced the artifact uploader, the retry storm saturated \
             the queue, three regions were drained by",
        )],
        usage: (101, Some(0), 32, Some(0)),
        raw: &["assistant"],
    },
    Expected {
        file: "openai-chat/stream_zero_arg.sse",
        finish: Finish::ToolCalls,
        raw_finish: "tool_calls",
        answered_by: "gpt-4.1-mini-2025-04-14",
        text: "",
        calls: &[("call_REDACTED_1", "ping", "{}")],
        usage: (56, Some(0), 10, Some(0)),
        raw: &["assistant"],
    },
];

#[test]
fn every_recorded_answer_decodes_to_what_it_holds() {
    let Some(names) = recorded::names("openai-chat") else {
        println!("skipped: HARNESS_FIXTURES names no folder");
        return;
    };
    for expected in &TABLE {
        let body = recorded::body(expected.file).expect("the folder is named");
        expected.check(&streamed(&body), &[recorded::message(&body)]);
    }
    let answers = names
        .iter()
        .filter(|name| !name.contains("request") && !name.starts_with("error"));
    for name in answers {
        let name = format!("openai-chat/{name}");
        assert!(
            TABLE.iter().any(|expected| expected.file == name),
            "{name} is in no row"
        );
    }
}

#[test]
fn every_recorded_error_means_what_it_says() {
    for (name, status, failure) in [
        (
            "openai-chat/error_400_context_length",
            400,
            Failure::ContextLength,
        ),
        ("openai-chat/error_400_validation", 400, Failure::Rejected),
        ("openai-chat/error_401", 401, Failure::Credentials),
        ("openai-chat/error_429_openrouter", 429, Failure::Transient),
        ("errors-context-length/bedrock", 400, Failure::ContextLength),
        (
            "errors-context-length/deepseek",
            400,
            Failure::ContextLength,
        ),
        (
            "errors-context-length/perplexity",
            400,
            Failure::ContextLength,
        ),
        (
            "errors-context-length/vertex_gemini",
            400,
            Failure::ContextLength,
        ),
        (
            "gemini/error_429_quota_is_context_length",
            429,
            Failure::ContextLength,
        ),
        ("gemini/error_404_model", 404, Failure::Rejected),
        ("openai-responses/error_400", 400, Failure::Rejected),
        (
            "openai-responses/error_prev_response_missing",
            400,
            Failure::Rejected,
        ),
    ] {
        let Some(body) = recorded::body(&format!("{name}.json")) else {
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
fn no_recorded_stream_is_complete_before_its_finish() {
    for name in recorded::names("openai-chat").into_iter().flatten() {
        if name.ends_with(".sse") {
            let body = recorded::body(&format!("openai-chat/{name}")).expect("the folder is named");
            recorded::check_every_cut(&name, &body, "\"finish_reason\":\"", || {
                stream::Chunks::new("m")
            });
        }
    }
}

/// A stream in the shape of the recorded ones.
const STREAM: &str = r#"data: {"id":"c1","object":"chat.completion.chunk","model":"x-1","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}],"usage":null}

data: {"id":"c1","model":"x-1","choices":[{"index":0,"delta":{"content":"Größe "},"finish_reason":null}]}

data: {"id":"c1","model":"x-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"look","arguments":""}}]},"finish_reason":null}]}

data: {"id":"c1","model":"x-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"see","arguments":"{\"n\":"}}]},"finish_reason":null}]}

data: {"id":"c1","model":"x-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}},{"index":1,"function":{"arguments":"1}"}}]},"finish_reason":null}]}

data: {"id":"c1","model":"x-1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"c1","model":"x-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}

data: [DONE]

"#;

#[test]
fn a_streamed_answer_is_put_together_and_cut_before_its_finish_it_is_none() {
    let response = streamed(STREAM);
    assert_eq!(response.finish, Finish::ToolCalls);
    let calls: Vec<&str> = response
        .calls()
        .iter()
        .map(|call| call.arguments.as_str())
        .collect();
    assert_eq!(calls, ["{}", "{\"n\":1}"]);
    assert_eq!(response.text(), "Größe ");
    assert_eq!(response.usage.input_tokens, Some(9));
    assert_eq!(response.usage.cached_tokens, Some(3));
    recorded::check_every_cut("written here", STREAM, "\"finish_reason\":\"", || {
        stream::Chunks::new("m")
    });
}

#[test]
fn what_compatible_servers_do_differently_is_read() {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    // No index, or the same for all; each call whole; tool_calls null; no usage; no [DONE].
    let whole = |id: &str, index: &str| {
        format!(
            "{{\"tool_calls\":[{{{index}\"id\":\"{id}\",\"function\":{{\"name\":\"t\",\"arguments\":\"{{}}\"}}}}]}}"
        )
    };
    for index in ["", "\"index\":0,"] {
        let body = chunk(r#"{"tool_calls":null,"content":""}"#, "null")
            + &chunk(&whole("a", index), "null")
            + &chunk(&whole("b", index), "\"stop\"");
        let response = streamed(&body);
        assert_eq!(
            response.finish,
            Finish::ToolCalls,
            "calls with \"stop\" are calls"
        );
        let ids: Vec<&str> = response
            .calls()
            .iter()
            .map(|call| call.id.as_str())
            .collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(response.usage.input_tokens, None);
    }
    let nameless = chunk(&whole("", "\"index\":0,"), "null")
        + &chunk(&whole("", "\"index\":1,"), "\"tool_calls\"");
    assert_eq!(
        streamed(&nameless).calls().len(),
        2,
        "empty ids are the loop's to make"
    );

    let body =
        r#"{"choices":[{"message":{"content":"x","tool_calls":null},"finish_reason":"stop"}]}"#;
    assert_eq!(
        decode::response(body, "m").expect("an answer").finish,
        Finish::Stop
    );
    let object = r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"t","arguments":{"n":1}}}]},"finish_reason":"tool_calls"}]}"#;
    let response = decode::response(object, "m").expect("an answer");
    assert_eq!(response.calls()[0].arguments, r#"{"n":1}"#);
}

#[test]
fn what_is_no_complete_answer_is_an_error() {
    for (body, failure) in [
        (
            r#"{"choices":[{"message":{"content":"x"},"finish_reason":null}]}"#,
            Failure::Cut,
        ),
        (r#"{"choices":[]}"#, Failure::Cut),
        (
            r#"{"choices":[{"message":{},"finish_reason":"of_its_own"}]}"#,
            Failure::Unreadable,
        ),
        (
            r#"{"error":{"code":"insufficient_quota","message":"x"}}"#,
            Failure::Billing,
        ),
        (
            r#"{"error":{"code":502,"message":"upstream"}}"#,
            Failure::Transient,
        ),
        ("", Failure::Unreadable),
    ] {
        assert_eq!(
            decode::response(body, "m").expect_err(body).failure(),
            failure,
            "{body}"
        );
    }
    let error = "data: {\"error\":{\"type\":\"server_error\",\"message\":\"x\"}}\n\n";
    let result = recorded::decoded(stream::Chunks::new("m"), &[error.as_bytes()]);
    assert_eq!(result.expect_err("an error").failure(), Failure::Transient);
    let result = recorded::decoded(stream::Chunks::new("m"), &[b"data: [DONE]\n\n"]);
    assert_eq!(result.expect_err("no finish").failure(), Failure::Cut);
}

/// A request in one form for all that mean the same.
fn meaning(mut body: Value, has_cap: bool) -> Value {
    let members = body.as_object_mut().expect("an object");
    if !has_cap {
        // The recorded one sent none; the loop always does.
        members.remove("max_tokens");
    }
    for message in body["messages"].as_array_mut().expect("messages") {
        if let Some(blocks) = message["content"].as_array() {
            message["content"] = Value::String(
                blocks
                    .iter()
                    .filter_map(|block| block["text"].as_str())
                    .collect(),
            );
        }
    }
    body
}

fn like(recorded: &Value) -> Request {
    let system = recorded["messages"][0]["content"][0]["text"]
        .as_str()
        .expect("a text");
    let user = recorded["messages"][1]["content"].as_str().expect("a text");
    let mut request = Request::new(user);
    request.system = Some(Arc::from(system));
    let tools = recorded["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| {
            let function = &tool["function"];
            ToolSpec {
                name: function["name"].as_str().expect("a name").to_owned(),
                description: function["description"].as_str().expect("a text").to_owned(),
                parameters: function["parameters"].clone(),
            }
        });
    request.tools = tools.collect();
    request
}

#[test]
fn recorded_requests_are_made_again_in_meaning() {
    let read = |name: &str| recorded::body(&format!("openai-chat/{name}"));
    let Some(text) = read("stream_tool_truncated_mid_args.request.json") else {
        return;
    };
    let recorded: Value = serde_json::from_str(&text).expect("JSON");
    let mut request = like(&recorded);
    request.max_output_tokens = 32;
    request.tool_choice = ToolChoice::Required;
    let body = encode::request(&request, "gpt-4o-mini", "max_tokens");
    assert_eq!(meaning(body, true), meaning(recorded, true));

    let text = read("stream_two_tool_calls_turn2.request.json").expect("a body");
    let recorded: Value = serde_json::from_str(&text).expect("JSON");
    let answer = streamed(&read("stream_two_tool_calls_turn1.sse").expect("a body"));
    let mut request = like(&recorded);
    let texts = ["crimson-harbor", "silver-orchard"];
    let results = answer
        .calls()
        .into_iter()
        .zip(texts)
        .map(|(call, text)| CallResult {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            text: text.to_owned(),
            is_error: false,
        });
    let results = results.collect();
    request
        .messages
        .push(Arc::new(Message::Assistant(answer.said())));
    request.messages.push(Arc::new(Message::Tools { results }));
    let body = encode::request(&request, "gpt-4o", "max_tokens");
    assert_eq!(body["max_tokens"], 4096);
    assert_eq!(meaning(body, false), meaning(recorded, false));
}

#[test]
fn signatures_of_a_server_go_back_to_its_model_only() {
    let delta = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":"{}"},"extra_content":{"signature":"s+/="}}]}"#;
    let body = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":\"tool_calls\"}}]}}\n\n"
    );
    let mut request = Request::new("x");
    request
        .messages
        .push(Arc::new(Message::Assistant(streamed(&body).said())));
    let call = |model: &str| {
        encode::request(&request, model, "max_tokens")["messages"][1]["tool_calls"][0].clone()
    };
    assert_eq!(call("m")["extra_content"]["signature"], "s+/=");
    assert_eq!(call("other")["extra_content"], Value::Null);
    assert_eq!(
        call("other"),
        json!({"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}})
    );
}

#[test]
fn the_length_is_capped_in_the_words_of_the_server() {
    let cap = |model: &OpenAi| {
        let body = model.codec.request(&Request::new("x"), "m");
        let members = ["max_tokens", "max_completion_tokens"];
        members.map(|name| body[name].as_u64())
    };
    let model = OpenAi::new("m", "k").expect("a key");
    assert_eq!(cap(&model), [None, Some(4096)]);
    let model = model.base_url("http://localhost/v1").expect("an address");
    assert_eq!(cap(&model), [Some(4096), None]);
    let model = model.output_cap(OutputCap::MaxCompletionTokens);
    assert_eq!(cap(&model), [None, Some(4096)]);
}
