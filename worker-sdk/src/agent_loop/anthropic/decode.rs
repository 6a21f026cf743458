//! An answer of the Messages API that came in one piece.

use serde_json::Value;

use super::PROVIDER;
use crate::agent_loop::decoding::{
    cut, in_stream_error, json, name_of, number_of, text_of, unknown_finish,
};
use crate::agent_loop::failure::ModelError;
use crate::agent_loop::message::{Block, Call};
use crate::agent_loop::response::{Finish, Response, Usage};

pub(super) fn response(body: &str, model: &str) -> Result<Response, ModelError> {
    let message = json(body)?;
    let is_error = message["type"] == "error" || !message["error"].is_null();
    let Some(raw) = message["content"].as_array().filter(|_| !is_error).cloned() else {
        return Err(in_stream_error(&message));
    };
    let blocks = raw
        .iter()
        .filter_map(|block| normalised(block, None))
        .collect();
    of_message(&message, blocks, raw, model)
}

/// A message whose content is known: from one body, or put together from a stream.
pub(super) fn of_message(
    message: &Value,
    blocks: Vec<Block>,
    raw: Vec<Value>,
    model: &str,
) -> Result<Response, ModelError> {
    let usage = usage(&message["usage"]);
    let Some(reason) = message["stop_reason"].as_str() else {
        return Err(cut("stop_reason").with_usage(usage));
    };
    let Some(finish) = finish(reason) else {
        return Err(unknown_finish(reason).with_usage(usage));
    };
    Ok(Response {
        id: name_of(message, "id"),
        provider: PROVIDER.to_owned(),
        model: model.to_owned(),
        answered_by: name_of(message, "model"),
        finish,
        finish_raw: reason.to_owned(),
        blocks,
        raw,
        usage,
        note: note(message),
    })
}

fn finish(reason: &str) -> Option<Finish> {
    Some(match reason {
        "tool_use" => Finish::ToolCalls,
        "end_turn" | "stop_sequence" => Finish::Stop,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "refusal" => Finish::Refusal,
        "pause_turn" => Finish::Pause,
        _ => return None,
    })
}

fn note(message: &Value) -> Option<String> {
    let explanation = message["stop_details"]["explanation"].as_str();
    let sequence = message["stop_sequence"].as_str();
    explanation.or(sequence).map(str::to_owned)
}

/// A block in the form of all providers; None for those that only the provider reads. `arguments`
/// are those of a call that came in pieces.
pub(super) fn normalised(block: &Value, arguments: Option<&str>) -> Option<Block> {
    match block["type"].as_str()? {
        "text" => Some(Block::Text {
            text: text_of(block, "text").to_owned(),
        }),
        "thinking" => Some(Block::Thinking {
            text: text_of(block, "thinking").to_owned(),
            signature: Some(text_of(block, "signature").to_owned()).filter(|text| !text.is_empty()),
        }),
        "redacted_thinking" => Some(Block::Thinking {
            text: String::new(),
            signature: Some(text_of(block, "data").to_owned()),
        }),
        "tool_use" => Some(Block::Call(Call {
            id: text_of(block, "id").to_owned(),
            name: name_of(block, "name"),
            arguments: match arguments {
                Some(text) if !text.is_empty() => text.to_owned(),
                Some(_) | None => block["input"].to_string(),
            },
        })),
        _ => None,
    }
}

/// Input counts what was read from and written to the cache too, and every iteration of a call that
/// the provider made several of.
pub(super) fn usage(raw: &Value) -> Usage {
    let iterations = raw["iterations"].as_array().filter(|all| !all.is_empty());
    let parts: Vec<&Value> = match iterations {
        Some(iterations) => iterations.iter().collect(),
        None => vec![raw],
    };
    let sum = |names: &[&str]| {
        let numbers: Vec<u64> = parts
            .iter()
            .flat_map(|part| names.iter().filter_map(|name| number_of(part, &[name])))
            .collect();
        numbers.into_iter().reduce(u64::saturating_add)
    };
    Usage {
        input_tokens: sum(&[
            "input_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
        ]),
        cached_tokens: sum(&["cache_read_input_tokens"]),
        output_tokens: sum(&["output_tokens"]),
        reasoning_tokens: number_of(raw, &["output_tokens_details", "thinking_tokens"]),
        raw: raw.clone(),
    }
}
