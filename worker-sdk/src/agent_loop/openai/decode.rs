//! A chat completion that came in one piece.

use serde_json::Value;

use super::PROVIDER;
use crate::agent_loop::decoding::{
    cut, in_stream_error, json, name_of, number_of, text_of, unknown_finish,
};
use crate::agent_loop::failure::ModelError;
use crate::agent_loop::message::{Block, Call};
use crate::agent_loop::response::{Finish, Response, Usage};

pub(super) fn response(body: &str, model: &str) -> Result<Response, ModelError> {
    let completion = json(body)?;
    if !completion["error"].is_null() || !completion["choices"].is_array() {
        return Err(in_stream_error(&completion));
    }
    let choice = &completion["choices"][0];
    let reason = choice["finish_reason"].as_str();
    of_message(
        &completion,
        choice["message"].clone(),
        reason,
        &completion["usage"],
        model,
    )
}

/// A message that is known to its end: from one body, or put together from a stream.
pub(super) fn of_message(
    completion: &Value,
    message: Value,
    reason: Option<&str>,
    usage: &Value,
    model: &str,
) -> Result<Response, ModelError> {
    let usage = normalised(usage);
    let Some(reason) = reason else {
        return Err(cut("finish_reason").with_usage(usage));
    };
    let blocks = blocks(&message);
    let has_calls = blocks.iter().any(|block| matches!(block, Block::Call(_)));
    let refused = !text_of(&message, "refusal").is_empty();
    let finish = match reason {
        "stop" if refused => Finish::Refusal,
        // A call that was demanded by name ends with "stop".
        "stop" if has_calls => Finish::ToolCalls,
        "stop" => Finish::Stop,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        "length" => Finish::Length,
        "content_filter" => Finish::Refusal,
        other => return Err(unknown_finish(other).with_usage(usage)),
    };
    Ok(Response {
        id: name_of(completion, "id"),
        provider: PROVIDER.to_owned(),
        model: model.to_owned(),
        answered_by: name_of(completion, "model"),
        finish,
        finish_raw: reason.to_owned(),
        blocks,
        raw: vec![message],
        usage,
        note: (reason == "content_filter").then(|| reason.to_owned()),
    })
}

fn blocks(message: &Value) -> Vec<Block> {
    let mut blocks = Vec::new();
    let thinking = match text_of(message, "reasoning_content") {
        "" => text_of(message, "reasoning"),
        text => text,
    };
    if !thinking.is_empty() {
        blocks.push(Block::Thinking {
            text: thinking.to_owned(),
            signature: None,
        });
    }
    for name in ["content", "refusal"] {
        let text = content(&message[name]);
        if !text.is_empty() {
            blocks.push(Block::Text { text });
        }
    }
    // Some servers send null for no calls.
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    blocks.extend(calls.map(|call| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // Some servers send the object itself.
            other => other.to_string(),
        };
        Block::Call(Call {
            id: text_of(call, "id").to_owned(),
            name: name_of(function, "name"),
            arguments,
        })
    }));
    blocks
}

/// The text of a content, which some servers send in parts.
pub(super) fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(|part| text_of(part, "text")).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

pub(super) fn normalised(raw: &Value) -> Usage {
    Usage {
        input_tokens: number_of(raw, &["prompt_tokens"]),
        cached_tokens: number_of(raw, &["prompt_tokens_details", "cached_tokens"]),
        output_tokens: number_of(raw, &["completion_tokens"]),
        reasoning_tokens: number_of(raw, &["completion_tokens_details", "reasoning_tokens"]),
        raw: raw.clone(),
    }
}
