//! A request as chat completions take it.

use serde_json::{Value, json};

use super::{PROVIDER, strict};
use crate::agent_loop::message::{Assistant, Call, CallResult, Message};
use crate::agent_loop::request::{Request, ToolChoice, ToolSpec};

pub(super) fn request(request: &Request, model: &str, cap: &str) -> Value {
    let mut body = json!({
        "model": model,
        "messages": messages(request, model),
        "stream": request.stream,
    });
    // Thinking counts as output here.
    let reserved = request.thinking.reserved_tokens();
    body[cap] = json!(request.max_output_tokens.saturating_add(reserved));
    if request.stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
        match &request.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::Required => body["tool_choice"] = json!("required"),
            ToolChoice::None => body["tool_choice"] = json!("none"),
            ToolChoice::Tool(name) => {
                body["tool_choice"] = json!({"type": "function", "function": {"name": name}});
            }
        }
    }
    if let Some(temperature) = request.temperature {
        body["temperature"] = json!(temperature);
    }
    body
}

fn tool(spec: &ToolSpec) -> Value {
    let mut function = json!({
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
    });
    if strict::is_compatible(&spec.parameters) {
        function["strict"] = json!(true);
    }
    json!({"type": "function", "function": function})
}

fn messages(request: &Request, model: &str) -> Vec<Value> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if let Some(system) = &request.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    for message in &request.messages {
        match &**message {
            Message::User { text } => messages.push(json!({"role": "user", "content": text})),
            Message::Tools { results } => messages.extend(results.iter().map(result)),
            Message::Assistant(said) => messages.extend(assistant(said, model)),
        }
    }
    messages
}

fn result(result: &CallResult) -> Value {
    json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text})
}

fn assistant(said: &Assistant, model: &str) -> Option<Value> {
    let text = said.text();
    let own = said
        .source
        .as_ref()
        .filter(|source| source.provider == PROVIDER && source.model == model)
        .and_then(|source| source.raw.first());
    let calls: Vec<Value> = said
        .calls()
        .enumerate()
        .map(|(place, call)| tool_call(call, own.map(|raw| &raw["tool_calls"][place])))
        .collect();
    if text.is_empty() && calls.is_empty() {
        return None;
    }
    let mut message = json!({"role": "assistant"});
    if !text.is_empty() {
        message["content"] = json!(text);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    // What some servers sign and want back.
    if let Some(details) = own
        .map(|raw| &raw["reasoning_details"])
        .filter(|raw| !raw.is_null())
    {
        message["reasoning_details"] = details.clone();
    }
    Some(message)
}

/// A call with its arguments as the model wrote them, readable or not.
fn tool_call(call: &Call, raw: Option<&Value>) -> Value {
    let arguments = match call.arguments.trim() {
        "" => "{}",
        _ => &call.arguments,
    };
    let mut written = json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    });
    // Where some servers keep the signature of the thinking before the call.
    if let Some(extra) = raw
        .map(|raw| &raw["extra_content"])
        .filter(|extra| !extra.is_null())
    {
        written["extra_content"] = extra.clone();
    }
    written
}
