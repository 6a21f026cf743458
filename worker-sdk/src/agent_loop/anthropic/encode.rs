//! A request as the Messages API takes it.

use serde_json::{Map, Value, json};

use super::PROVIDER;
use crate::agent_loop::message::{Assistant, Block, Call, CallResult, Message};
use crate::agent_loop::request::{Request, Thinking, ToolChoice, ToolSpec};

pub(super) fn request(request: &Request, model: &str) -> Value {
    let mut body = json!({
        "model": model,
        "max_tokens": request
            .max_output_tokens
            .saturating_add(request.thinking.reserved_tokens()),
        "messages": messages(request, model),
        "stream": request.stream,
    });
    if let Some(system) = &request.system {
        body["system"] = json!(system);
    }
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
        match &request.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::Required => body["tool_choice"] = json!({"type": "any"}),
            ToolChoice::None => body["tool_choice"] = json!({"type": "none"}),
            ToolChoice::Tool(name) => body["tool_choice"] = json!({"type": "tool", "name": name}),
        }
    }
    match request.thinking {
        Thinking::Default => {}
        Thinking::Adaptive => body["thinking"] = json!({"type": "adaptive"}),
        Thinking::Budget(tokens) => {
            body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
        }
    }
    if let Some(temperature) = request.temperature {
        body["temperature"] = json!(temperature);
    }
    body
}

fn tool(spec: &ToolSpec) -> Value {
    json!({
        "name": spec.name,
        "description": spec.description,
        "input_schema": spec.parameters,
    })
}

/// The conversation. What the caller says right behind results stands in one message with them.
fn messages(request: &Request, model: &str) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::with_capacity(request.messages.len());
    let mut add = |role: &str, content: Vec<Value>| {
        if content.is_empty() {
            return;
        }
        let last = messages
            .last_mut()
            .filter(|last| role == "user" && last["role"] == role);
        match last.and_then(|last| last["content"].as_array_mut()) {
            Some(before) => before.extend(content),
            None => messages.push(json!({"role": role, "content": content})),
        }
    };
    for message in &request.messages {
        match &**message {
            Message::User { text } => add("user", texts(text)),
            Message::Tools { results } => add("user", results.iter().map(result).collect()),
            Message::Assistant(said) => add("assistant", assistant(said, model)),
        }
    }
    messages
}

/// An empty text is none: the API refuses it.
fn texts(text: &str) -> Vec<Value> {
    let is_empty = text.trim().is_empty();
    (!is_empty)
        .then(|| json!({"type": "text", "text": text}))
        .into_iter()
        .collect()
}

fn result(result: &CallResult) -> Value {
    let mut block = json!({
        "type": "tool_result",
        "tool_use_id": id(&result.call_id),
        "content": result.text,
    });
    if result.is_error {
        block["is_error"] = json!(true);
    }
    block
}

fn assistant(said: &Assistant, model: &str) -> Vec<Value> {
    let own = said
        .source
        .as_ref()
        .filter(|source| source.provider == PROVIDER && source.model == model);
    match own {
        Some(source) => replayed(&source.raw, said),
        None => said.blocks.iter().flat_map(normalised).collect(),
    }
}

/// The provider's own blocks, byte for byte, but for calls, which have the ids of this run.
fn replayed(raw: &[Value], said: &Assistant) -> Vec<Value> {
    let mut calls = said.calls();
    let mut blocks = Vec::with_capacity(raw.len());
    for block in raw {
        match block["type"].as_str() {
            Some("text")
                if block["text"]
                    .as_str()
                    .is_none_or(|text| text.trim().is_empty()) => {}
            Some("tool_use") => {
                let mut block = block.clone();
                if let Some(call) = calls.next() {
                    block["id"] = json!(id(&call.id));
                    if !block["input"].is_object() {
                        block["input"] = input(call);
                    }
                }
                blocks.push(block);
            }
            Some(_) | None => blocks.push(block.clone()),
        }
    }
    blocks
}

/// A block of another provider or model: its thinking is not this one's to read.
fn normalised(block: &Block) -> Vec<Value> {
    match block {
        Block::Text { text } => texts(text),
        Block::Thinking { .. } => Vec::new(),
        Block::Call(call) => vec![json!({
            "type": "tool_use",
            "id": id(&call.id),
            "name": call.name,
            "input": input(call),
        })],
    }
}

/// The arguments as the object the API wants; what could not be read stands in it as it was.
fn input(call: &Call) -> Value {
    if call.arguments.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(&call.arguments) {
        Ok(value @ Value::Object(_)) => value,
        Ok(_) | Err(_) => json!({"unreadable_arguments": call.arguments}),
    }
}

/// The API takes letters, digits, _ and - in an id; ids of other providers have more.
fn id(id: &str) -> String {
    let usable = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' || c == '-' {
            c
        } else {
            '_'
        }
    };
    id.chars().map(usable).collect()
}
