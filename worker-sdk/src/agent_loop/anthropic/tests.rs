//! Bodies of the Messages API: recorded ones where the machine has them, and ones written here.

mod pieces;
mod requests;

use serde_json::{Value, json};

use super::{decode, stream};
use crate::agent_loop::failure::{Answered, Failure, judge};
use crate::agent_loop::message::Block;
use crate::agent_loop::recorded::{self, Expected};
use crate::agent_loop::response::{Finish, Response};

fn decoded(file: &str, body: &str, model: &str) -> Response {
    let response = if file.ends_with(".sse") {
        recorded::decoded(stream::Messages::new(model), &[body.as_bytes()])
    } else {
        decode::response(body, model)
    };
    response.unwrap_or_else(|error| panic!("{file}: {error:?}"))
}

/// The signatures of an answer's thinking.
fn signatures(response: &Response) -> Vec<&str> {
    let signatures = response.blocks.iter().filter_map(|block| match block {
        Block::Thinking { signature, .. } => signature.as_deref(),
        Block::Text { .. } | Block::Call(_) => None,
    });
    signatures.collect()
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
        let raw = if expected.file.ends_with(".sse") {
            recorded::blocks(&body)
        } else {
            let message: Value = serde_json::from_str(&body).expect("JSON");
            message["content"].as_array().expect("blocks").clone()
        };
        expected.check(&decoded(expected.file, &body, "m"), &raw);
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
    assert_eq!(signatures(&response), ["signature_REDACTED_2"]);
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
    assert_eq!(signatures(&response), ["c2ln+/="]);
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
        ("{}", Failure::Unreadable),
    ] {
        assert_eq!(
            decode::response(body, "m").expect_err(body).failure(),
            failure,
            "{body}"
        );
    }
}
