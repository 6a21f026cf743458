//! A chat completion that comes in chunks.
//!
//! Owns putting the message together. It is complete with its `finish_reason`; usage comes in a
//! chunk of its own behind that, or not at all.

use serde_json::{Value, json};

use super::decode::{content, normalised, of_message};
use crate::agent_loop::decoding::{Decoder, add_part, append, cut, in_stream_error, json, text_of};
use crate::agent_loop::failure::ModelError;
use crate::agent_loop::response::{Response, Usage};
use crate::agent_loop::sse::Event;

pub(super) struct Chunks {
    model: String,
    /// The members that are the same in every chunk.
    completion: Value,
    message: Value,
    calls: Vec<Partial>,
    finish: Option<String>,
    usage: Value,
    is_done: bool,
}

/// A call that comes in pieces.
struct Partial {
    index: Option<u64>,
    raw: Value,
}

impl Chunks {
    pub(super) fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            completion: Value::Null,
            message: json!({"role": "assistant"}),
            calls: Vec::new(),
            finish: None,
            usage: Value::Null,
            is_done: false,
        }
    }

    fn choice(&mut self, choice: &Value) -> Result<String, ModelError> {
        let delta = &choice["delta"];
        let text = content(&delta["content"]);
        if !delta["content"].is_null() {
            append(&mut self.message, "content", &text);
        }
        for name in ["refusal", "reasoning_content", "reasoning"] {
            if let Some(more) = delta[name].as_str() {
                append(&mut self.message, name, more);
            }
        }
        if let Some(details) = delta["reasoning_details"].as_array() {
            match &mut self.message["reasoning_details"] {
                Value::Array(all) => all.extend(details.iter().cloned()),
                other => *other = Value::Array(details.clone()),
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call)?;
        }
        if let Some(reason) = choice["finish_reason"]
            .as_str()
            .filter(|reason| !reason.is_empty())
        {
            // An answer that was cut off or withheld stays so, whatever a server says behind it.
            if self.may_go_on() {
                self.finish = Some(reason.to_owned());
            }
        }
        Ok(text)
    }

    /// Whether more can come behind the reason to end that is known, if one is.
    fn may_go_on(&self) -> bool {
        let open = |known: &str| matches!(known, "stop" | "tool_calls" | "function_call");
        self.finish.as_deref().is_none_or(open)
    }

    /// A piece of a call. Its index says which; servers that leave that out, or number all calls
    /// alike, begin each call with its id.
    fn call(&mut self, piece: &Value) -> Result<(), ModelError> {
        if !piece.is_object() {
            return Ok(());
        }
        // A reason to end holds for what is before it; a call behind it wants another.
        if self.may_go_on() {
            self.finish = None;
        }
        let index = piece["index"].as_u64();
        let id = text_of(piece, "id");
        let name = text_of(&piece["function"], "name");
        let known = self.calls.iter_mut().rev().find(|call| {
            let is_same_place = call.index == index;
            let known_id = text_of(&call.raw, "id");
            let is_other = !id.is_empty() && !known_id.is_empty() && id != known_id;
            is_same_place && !is_other
        });
        let arguments = match &piece["function"]["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // Some servers send the object itself.
            other => other.to_string(),
        };
        let begins_again = index.is_none() && !name.is_empty();
        match known.filter(|_| !begins_again) {
            Some(call) => {
                append(&mut call.raw["function"], "arguments", &arguments);
                if !id.is_empty() {
                    call.raw["id"] = json!(id);
                }
                if !name.is_empty() && text_of(&call.raw["function"], "name").is_empty() {
                    call.raw["function"]["name"] = json!(name);
                }
            }
            None => {
                let mut raw = piece.clone();
                // A server may name the function in a later piece; its arguments must find a place.
                if !raw["function"].is_object() {
                    raw["function"] = json!({});
                }
                raw["function"]["arguments"] = json!(arguments);
                add_part(&mut self.calls, Partial { index, raw })?;
            }
        }
        Ok(())
    }
}

impl Decoder for Chunks {
    fn event(&mut self, event: &Event) -> Result<Option<String>, ModelError> {
        if event.data.trim() == "[DONE]" {
            self.is_done = true;
            return Ok(None);
        }
        let chunk = json(&event.data)?;
        if !chunk["error"].is_null() {
            return Err(in_stream_error(&chunk));
        }
        if self.completion.is_null() {
            self.completion = json!({"id": chunk["id"], "model": chunk["model"]});
        }
        if !chunk["usage"].is_null() {
            self.usage = chunk["usage"].clone();
        }
        let choices = chunk["choices"].as_array().into_iter().flatten();
        // Only one choice is ever asked for.
        let own = choices.filter(|choice| choice["index"].as_u64().unwrap_or(0) == 0);
        let text: Result<String, ModelError> = own.map(|choice| self.choice(choice)).collect();
        let text = text?;
        Ok((!text.is_empty()).then_some(text))
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    fn is_whole(&self) -> bool {
        self.finish.is_some()
    }

    fn usage(&self) -> Usage {
        normalised(&self.usage)
    }

    fn finish(mut self) -> Result<Response, ModelError> {
        let Some(finish) = self.finish else {
            return Err(cut("finish_reason"));
        };
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().map(|call| call.raw).collect();
            self.message["tool_calls"] = Value::Array(calls);
        }
        of_message(
            &self.completion,
            self.message,
            Some(&finish),
            &self.usage,
            &self.model,
        )
    }
}
