//! An answer of the Messages API that comes in events.
//!
//! Owns putting blocks together from their pieces. The answer is complete with `message_stop` and
//! nothing before: a stop reason alone is not enough.

use serde_json::Value;

use super::decode::{normalised, of_message, usage};
use crate::agent_loop::decoding::{
    Decoder, add_part, append, cut, in_stream_error, is_too_deep, json, text_of,
};
use crate::agent_loop::failure::{Failure, ModelError};
use crate::agent_loop::response::{Response, Usage};
use crate::agent_loop::sse::Event;

pub(super) struct Messages {
    model: String,
    /// The message as it is known so far, its content apart.
    message: Value,
    blocks: Vec<Partial>,
    is_stopped: bool,
}

/// A block that comes in pieces.
struct Partial {
    index: u64,
    raw: Value,
    /// The text of a call's arguments.
    arguments: String,
}

impl Messages {
    pub(super) fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            message: Value::Null,
            blocks: Vec::new(),
            is_stopped: false,
        }
    }

    fn block(&mut self, data: &Value) -> Option<&mut Partial> {
        let index = data["index"].as_u64()?;
        self.blocks
            .iter_mut()
            .rev()
            .find(|block| block.index == index)
    }

    fn delta(&mut self, data: &Value) -> Option<String> {
        let delta = &data["delta"];
        let block = self.block(data)?;
        match delta["type"].as_str()? {
            "text_delta" => {
                let text = text_of(delta, "text");
                append(&mut block.raw, "text", text);
                return Some(text.to_owned());
            }
            "thinking_delta" => append(&mut block.raw, "thinking", text_of(delta, "thinking")),
            "signature_delta" => append(&mut block.raw, "signature", text_of(delta, "signature")),
            "input_json_delta" => {
                block.arguments.push_str(text_of(delta, "partial_json"));
                self.goes_on();
            }
            "compaction_delta" => append(&mut block.raw, "content", text_of(delta, "content")),
            "citations_delta" => {
                if let Some(members) = block.raw.as_object_mut() {
                    let citations = members.entry("citations").or_insert(Value::Null);
                    match citations {
                        Value::Array(all) => all.push(delta["citation"].clone()),
                        other => *other = Value::Array(vec![delta["citation"].clone()]),
                    }
                }
            }
            // A piece of a newer version of the API.
            _ => {}
        }
        None
    }

    /// A piece of a call came. A stop reason holds for what is before it, so this one wants another.
    fn goes_on(&mut self) {
        if let Some(reason) = self
            .message
            .get_mut("stop_reason")
            .filter(|reason| may_go_on(reason))
        {
            *reason = Value::Null;
        }
    }

    /// What the end of the message says: the stop reason, and usage over that of the begin.
    fn end(&mut self, data: &Value) {
        let Some(message) = self.message.as_object_mut() else {
            return;
        };
        // An answer that was cut off or withheld stays so, whatever is said behind it.
        let stays = message
            .get("stop_reason")
            .is_some_and(|reason| !reason.is_null() && !may_go_on(reason));
        for (name, value) in data["delta"].as_object().into_iter().flatten() {
            let is_reason = name == "stop_reason";
            if !is_reason || !(stays || value.is_null()) {
                message.insert(name.clone(), value.clone());
            }
        }
        let Some(more) = data["usage"].as_object() else {
            return;
        };
        match message.get_mut("usage").and_then(Value::as_object_mut) {
            Some(usage) => usage.extend(more.clone()),
            None => {
                message.insert("usage".to_owned(), data["usage"].clone());
            }
        }
    }
}

/// Whether more can come behind this stop reason.
fn may_go_on(reason: &Value) -> bool {
    matches!(
        reason.as_str(),
        Some("tool_use" | "end_turn" | "stop_sequence")
    )
}

/// A piece that cannot be put anywhere: without it a call could run with other arguments.
fn lost(missing: &str) -> ModelError {
    let message = format!("a piece of the answer belongs to no {missing}");
    ModelError::new(Failure::Unreadable, message)
}

impl Decoder for Messages {
    fn event(&mut self, event: &Event) -> Result<Option<String>, ModelError> {
        let data = json(&event.data)?;
        match data["type"].as_str().unwrap_or(&event.name) {
            "message_start" => self.message = data["message"].clone(),
            "content_block_start" if !data["content_block"].is_object() => {
                return Err(lost("content"));
            }
            "content_block_start" => {
                let raw = data["content_block"].clone();
                if raw["type"] == "tool_use" {
                    self.goes_on();
                }
                let begun = Partial {
                    index: data["index"].as_u64().unwrap_or(0),
                    raw,
                    arguments: String::new(),
                };
                add_part(&mut self.blocks, begun)?;
            }
            "content_block_delta" if self.block(&data).is_none() => return Err(lost("block")),
            "content_block_delta" => return Ok(self.delta(&data)),
            "message_delta" => self.end(&data),
            "message_stop" => self.is_stopped = true,
            "error" => return Err(in_stream_error(&data)),
            // Pings, ends of blocks, and events of a newer version of the API.
            _ => {}
        }
        Ok(None)
    }

    fn is_done(&self) -> bool {
        self.is_stopped
    }

    fn is_whole(&self) -> bool {
        self.is_stopped
    }

    fn usage(&self) -> Usage {
        usage(&self.message["usage"])
    }

    fn finish(self) -> Result<Response, ModelError> {
        if !self.is_stopped {
            return Err(cut("message_stop"));
        }
        let mut blocks = Vec::with_capacity(self.blocks.len());
        let mut raw = Vec::with_capacity(self.blocks.len());
        for mut partial in self.blocks {
            blocks.extend(normalised(&partial.raw, Some(&partial.arguments)));
            if !partial.arguments.is_empty() {
                let read = serde_json::from_str(&partial.arguments).ok();
                let kept = read.filter(|read| !is_too_deep(read));
                // What cannot be read, or be kept, stays as the text it is.
                partial.raw["input"] = kept.unwrap_or(Value::String(partial.arguments));
            }
            raw.push(partial.raw);
        }
        of_message(&self.message, blocks, raw, &self.model)
    }
}
