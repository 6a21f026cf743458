//! Streams whose pieces come as they should not.

use serde_json::{Value, json};

use super::{STREAM, decode, stream};
use crate::agent_loop::decoding::{Decoder as _, Incoming};
use crate::agent_loop::failure::{Failure, ModelError};
use crate::agent_loop::recorded;
use crate::agent_loop::response::{Finish, Response};

fn decoded(body: &str) -> Result<Response, ModelError> {
    recorded::decoded(stream::Messages::new("m"), &[body.as_bytes()])
}

/// A stream of these events.
fn stream_of(events: &[Value]) -> String {
    let start = json!({"type": "message_start", "message": {"id": "m", "content": []}});
    let events = std::iter::once(&start).chain(events);
    events.map(|event| format!("data: {event}\n\n")).collect()
}

fn begin(index: u32, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn call(index: u32) -> Value {
    begin(
        index,
        json!({"type": "tool_use", "id": format!("c{index}"), "name": "t", "input": {}}),
    )
}

fn arguments(index: u32, text: &str) -> Value {
    let delta = json!({"type": "input_json_delta", "partial_json": text});
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn reason(reason: Option<&str>) -> Value {
    json!({"type": "message_delta", "delta": {"stop_reason": reason}})
}

fn stop() -> Value {
    json!({"type": "message_stop"})
}

#[test]
fn a_piece_that_belongs_nowhere_makes_the_answer_unreadable() {
    let begin = r#""index":1,"content_block":{"type":"tool_use""#;
    let piece = r#""index":1,"delta":{"type":"input_json_delta","partial_json":"{\"for"#;
    for (part, other) in [
        (piece, piece.replace(r#""index":1,"#, "")),
        (piece, piece.replace(r#""index":1"#, r#""index":7"#)),
        (
            begin,
            begin.replace(r#"{"type":"tool_use""#, r#""junk","was":{"x":"y""#),
        ),
    ] {
        let body = STREAM.replacen(part, &other, 1);
        assert_ne!(body, STREAM, "{part}");
        let result = recorded::decoded(stream::Messages::new("m"), &[body.as_bytes()]);
        assert_eq!(
            result.expect_err(&other).failure(),
            Failure::Unreadable,
            "{other}"
        );
    }
}

#[test]
fn an_answer_that_was_cut_off_stays_so_whatever_is_said_behind_it() {
    for (reasons, finish) in [
        ([Some("max_tokens"), Some("tool_use")], Finish::Length),
        ([Some("refusal"), Some("end_turn")], Finish::Refusal),
        ([Some("max_tokens"), None], Finish::Length),
        ([Some("tool_use"), None], Finish::ToolCalls),
        ([Some("tool_use"), Some("max_tokens")], Finish::Length),
        ([Some("end_turn"), Some("tool_use")], Finish::ToolCalls),
    ] {
        let [first, second] = reasons.map(reason);
        let body = stream_of(&[call(0), first, second, stop()]);
        assert_eq!(
            decoded(&body).expect("an answer").finish,
            finish,
            "{reasons:?}"
        );
    }
}

#[test]
fn a_call_behind_the_stop_reason_wants_one_of_its_own() {
    let tool_use = || reason(Some("tool_use"));
    for late in [call(1), arguments(0, "1}")] {
        let begin = [call(0), arguments(0, "{\"n\":"), tool_use(), late];
        let error = decoded(&stream_of(&[&begin[..], &[stop()]].concat()));
        assert_eq!(error.expect_err("no reason").failure(), Failure::Cut);
        let response = decoded(&stream_of(&[&begin[..], &[tool_use(), stop()]].concat()));
        assert_eq!(response.expect("an answer").finish, Finish::ToolCalls);
        let cut = [
            call(0),
            reason(Some("max_tokens")),
            arguments(0, "{}"),
            stop(),
        ];
        let response = decoded(&stream_of(&cut)).expect("an answer");
        assert_eq!(response.finish, Finish::Length);
    }
}

#[test]
fn what_only_the_provider_reads_is_put_together_too() {
    let piece = |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let cited = |page: u32| {
        piece(
            1,
            json!({"type": "citations_delta", "citation": {"page": page}}),
        )
    };
    let response = decoded(&stream_of(&[
        begin(0, json!({"type": "compaction", "content": null})),
        piece(
            0,
            json!({"type": "compaction_delta", "content": "The talk "}),
        ),
        piece(0, json!({"type": "compaction_delta", "content": "so far."})),
        begin(1, json!({"type": "text", "text": ""})),
        cited(1),
        cited(2),
        reason(Some("end_turn")),
        stop(),
    ]))
    .expect("an answer");
    let raw = json!([
        {"type": "compaction", "content": "The talk so far."},
        {"type": "text", "text": "", "citations": [{"page": 1}, {"page": 2}]},
    ]);
    assert_eq!(json!(response.raw), raw);
}

#[test]
fn arguments_however_deep_are_kept_so_that_the_journal_reads_them_again() {
    for depth in [1, 60, 98, 99, 100, 101, 110, 118, 123, 126, 127, 128, 500] {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let events = [
            call(0),
            arguments(0, &text),
            reason(Some("tool_use")),
            stop(),
        ];
        let response = decoded(&stream_of(&events)).expect("an answer");
        assert_eq!(response.calls()[0].arguments, text);
        let input = &response.raw[0]["input"];
        assert_eq!(input.is_object(), depth < 100, "{depth}");
        // As deep as in a record of the journal.
        let kept = json!({"step": {"outcome": {"response": response}}}).to_string();
        let read: Value = serde_json::from_str(&kept).expect("it is read again");
        assert_eq!(
            read["step"]["outcome"]["response"],
            json!(response),
            "{depth}"
        );
    }
    let block = format!("{}{}", "[".repeat(110), "]".repeat(110));
    let block = json!({"type": "new", "in": serde_json::from_str::<Value>(&block).expect("JSON")});
    let error = decoded(&stream_of(&[begin(0, block)])).expect_err("too deep");
    assert_eq!(error.failure(), Failure::Unreadable);
}

#[test]
fn an_answer_has_no_more_blocks_than_any_model_gives() {
    let mut stream = stream::Messages::new("m");
    let event = |index| crate::agent_loop::sse::Event {
        name: String::new(),
        data: call(index).to_string(),
    };
    let full = (0..100_000).find(|index| stream.event(&event(*index)).is_err());
    assert_eq!(full, Some(2_000));
}

#[test]
fn names_of_any_length_are_kept_short() {
    let long = "é".repeat(100_000);
    let start = json!({"type": "message_start", "message": {"id": long, "model": long}});
    let named = begin(
        0,
        json!({"type": "tool_use", "id": "c", "name": long, "input": {}}),
    );
    let response = decoded(&stream_of(&[
        start,
        named,
        reason(Some("tool_use")),
        stop(),
    ]));
    let response = response.expect("an answer");
    for name in [
        &response.id,
        &response.answered_by,
        &response.calls()[0].name,
    ] {
        assert_eq!(name.len(), 256);
    }
}

#[test]
fn what_an_answer_used_is_known_before_its_end() {
    let start = json!({"type": "message_start", "message": {
        "id": "m", "usage": {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 1},
    }});
    let used = |events: &[Value]| {
        let mut incoming = Incoming::new(stream::Messages::new("m"));
        for event in events {
            let fed = incoming.feed(format!("data: {event}\n\n").as_bytes());
            fed.expect("a piece");
        }
        let usage = incoming.usage();
        (usage.input_tokens, usage.output_tokens)
    };
    assert_eq!(used(&[]), (None, None));
    assert_eq!(used(&[start.clone(), call(0)]), (Some(9), Some(1)));
    let end = json!({"type": "message_delta", "usage": {"output_tokens": 30}});
    assert_eq!(used(&[start, call(0), end]), (Some(9), Some(30)));
    for reason in [json!(null), json!("of_its_own")] {
        let usage = json!({"input_tokens": 7, "output_tokens": 5});
        let body = json!({"content": [], "stop_reason": reason, "usage": usage});
        let error = decode::response(&body.to_string(), "m").expect_err("no answer");
        let usage = error.usage().expect("what it used");
        assert_eq!(
            (usage.input_tokens, usage.output_tokens),
            (Some(7), Some(5))
        );
    }
}
