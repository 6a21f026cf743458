//! Streams whose pieces come as they should not.

use serde_json::{Value, json};

use super::{decode, stream, streamed};
use crate::agent_loop::decoding::Incoming;
use crate::agent_loop::failure::Failure;
use crate::agent_loop::recorded;
use crate::agent_loop::response::Finish;

/// A stream of these deltas, then of these reasons to end.
fn stream_of(deltas: &[Value], reasons: &[&str]) -> String {
    let chunk = |delta: &Value, reason: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let deltas = deltas.iter().map(|delta| chunk(delta, None));
    let reasons = reasons.iter().map(|reason| chunk(&json!({}), Some(reason)));
    deltas.chain(reasons).collect()
}

#[test]
fn no_argument_of_a_call_is_lost_however_its_pieces_come() {
    let begin = json!({"index": 0, "id": "a", "type": "function"});
    let named = |arguments: Value| json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": arguments}});
    let more = |function: Value| json!({"index": 0, "function": function});
    for pieces in [
        vec![
            begin.clone(),
            more(json!({"name": "t", "arguments": "{\"n\":1}"})),
        ],
        vec![named(Value::Null), more(json!({"arguments": "{\"n\":1}"}))],
        vec![named(json!("")), more(json!({"arguments": {"n": 1}}))],
        vec![named(json!({"n": 1}))],
        vec![
            json!("junk"),
            json!({"index": 0, "id": "a", "function": "junk"}),
            named(json!("{\"n\":1}")),
        ],
    ] {
        let deltas: Vec<Value> = pieces
            .iter()
            .map(|piece| json!({"tool_calls": [piece]}))
            .collect();
        let response = streamed(&stream_of(&deltas, &["tool_calls"]));
        let calls: Vec<(&str, &str)> = response
            .calls()
            .iter()
            .map(|call| (call.name.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(calls, [("t", "{\"n\":1}")], "{pieces:?}");
    }
}

#[test]
fn an_answer_that_was_cut_off_stays_so_whatever_is_said_behind_it() {
    let call = json!({"index": 0, "id": "a", "function": {"name": "t", "arguments": "{}"}});
    let deltas = [json!({"tool_calls": [call]})];
    for (reasons, finish) in [
        (["length", "tool_calls"], Finish::Length),
        (["tool_calls", "length"], Finish::Length),
        (["content_filter", "stop"], Finish::Refusal),
        (["stop", "tool_calls"], Finish::ToolCalls),
    ] {
        assert_eq!(
            streamed(&stream_of(&deltas, &reasons)).finish,
            finish,
            "{reasons:?}"
        );
    }
}

#[test]
fn a_call_behind_the_finish_reason_wants_one_of_its_own() {
    let call = |id: &str| json!({"tool_calls": [{"id": id, "function": {"name": "t"}}]});
    let finished = |reason| stream_of(&[call("a")], &[reason]);
    for (body, finish) in [
        (finished("stop") + &stream_of(&[call("b")], &[]), None),
        (finished("tool_calls") + &stream_of(&[call("a")], &[]), None),
        (
            finished("stop") + &finished("tool_calls"),
            Some(Finish::ToolCalls),
        ),
        (
            finished("length") + &stream_of(&[call("b")], &[]),
            Some(Finish::Length),
        ),
        (
            finished("stop") + &stream_of(&[json!({"tool_calls": [], "content": ""})], &[]),
            Some(Finish::ToolCalls),
        ),
    ] {
        let body = body + "data: [DONE]\n\n";
        let result = recorded::decoded(stream::Chunks::new("m"), &[body.as_bytes()]);
        match finish {
            Some(finish) => assert_eq!(result.expect(&body).finish, finish, "{body}"),
            None => assert_eq!(result.expect_err(&body).failure(), Failure::Cut, "{body}"),
        }
    }
}

#[test]
fn a_text_that_comes_in_parts_is_read() {
    let parts = json!([
        {"type": "thinking", "thinking": [{"type": "text", "text": "no"}]},
        {"type": "text", "text": "Grö"},
        {"type": "text", "text": "ße"},
    ]);
    let deltas = [json!({"content": parts}), json!({"content": "."})];
    assert_eq!(streamed(&stream_of(&deltas, &["stop"])).text(), "Größe.");
    let whole = json!({"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]});
    let response = decode::response(&whole.to_string(), "m").expect("an answer");
    assert_eq!(response.text(), "Größe");
}

#[test]
fn an_answer_has_no_more_calls_than_any_model_makes() {
    let calls = |count: u32| {
        let calls = (0..count).map(|n| json!({"index": n, "id": n.to_string()}));
        stream_of(
            &[json!({"tool_calls": calls.collect::<Vec<_>>()})],
            &["tool_calls"],
        )
    };
    assert_eq!(streamed(&calls(2_000)).calls().len(), 2_000);
    let body = calls(2_001);
    let result = recorded::decoded(stream::Chunks::new("m"), &[body.as_bytes()]);
    assert_eq!(result.expect_err("too many").failure(), Failure::Unreadable);
}

#[test]
fn what_an_answer_used_is_known_before_its_end_where_the_server_says_so() {
    let mut incoming = Incoming::new(stream::Chunks::new("m"));
    assert_eq!(incoming.usage().input_tokens, None);
    // Some servers count in every chunk.
    for output in [1, 2] {
        let usage = json!({"prompt_tokens": 7, "completion_tokens": output});
        let choice = json!({"index": 0, "delta": {"content": "x"}});
        let chunk = json!({"choices": [choice], "usage": usage});
        let fed = incoming.feed(format!("data: {chunk}\n\n").as_bytes());
        fed.expect("a piece");
        let usage = incoming.usage();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens),
            (Some(7), Some(output))
        );
    }
    for reason in [json!(null), json!("of_its_own")] {
        let choice = json!({"message": {"content": "x"}, "finish_reason": reason});
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 5});
        let body = json!({"choices": [choice], "usage": usage});
        let error = decode::response(&body.to_string(), "m").expect_err("no answer");
        let usage = error.usage().expect("what it used");
        assert_eq!(
            (usage.input_tokens, usage.output_tokens),
            (Some(7), Some(5))
        );
    }
}
