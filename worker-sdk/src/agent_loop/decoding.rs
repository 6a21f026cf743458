//! What the decoders of all providers share: a stream of events becomes a response or an error.
//!
//! Owns the shape of a stream's decoder and the reading of members that may not be there. Pure.

use serde_json::Value;

use super::excerpt::head;
use super::failure::{Answered, Failure, ModelError, judge};
use super::response::{Response, Usage};
use super::sse::{Event, Sse, SseError};

/// The largest event of a stream, in bytes.
pub(crate) const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most blocks, or calls, of an answer that comes in events. No model gives a tenth of it.
const PARTS_MAX: usize = 2_000;

/// How deep the JSON of an answer may nest. It is kept inside of other JSON, and what reads that takes
/// 128 levels.
const DEPTH_MAX: usize = 100;

/// Bytes of a name or an id that are kept at most.
const NAME_BYTES_MAX: usize = 256;

/// Takes the events of one answer.
pub trait Decoder: Send {
    /// Takes an event; gives text of the answer that came with it.
    fn event(&mut self, event: &Event) -> Result<Option<String>, ModelError>;

    /// Whether nothing more can come.
    fn is_done(&self) -> bool;

    /// Whether the answer is whole, though more may come that says something of it.
    fn is_whole(&self) -> bool;

    /// What the answer used, as far as it has said that.
    fn usage(&self) -> Usage;

    /// The answer, if its terminal event has come. Else it was cut off.
    fn finish(self) -> Result<Response, ModelError>;
}

/// An answer that is coming in: its bytes and the decoder of its events.
pub(crate) struct Incoming<D> {
    sse: Sse,
    events: Vec<Event>,
    decoder: D,
}

impl<D: Decoder> Incoming<D> {
    pub(crate) fn new(decoder: D) -> Self {
        Self {
            sse: Sse::new(EVENT_BYTES_MAX),
            events: Vec::new(),
            decoder,
        }
    }

    /// Takes the next bytes; gives the text of the answer in them.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<String, ModelError> {
        self.sse
            .feed(bytes, &mut self.events)
            .map_err(|error| unreadable_stream(&error))?;
        let mut text = String::new();
        for event in self.events.drain(..) {
            if self.decoder.is_done() {
                break;
            }
            text.extend(self.decoder.event(&event)?);
        }
        Ok(text)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.decoder.is_whole()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.decoder.usage()
    }

    pub(crate) fn finish(self) -> Result<Response, ModelError> {
        self.decoder.finish()
    }
}

fn unreadable_stream(error: &SseError) -> ModelError {
    ModelError::new(Failure::Unreadable, error.to_string())
}

/// The JSON of an event or a body.
pub(crate) fn json(text: &str) -> Result<Value, ModelError> {
    let unreadable = |message| ModelError::new(Failure::Unreadable, message);
    let value = serde_json::from_str(text)
        .map_err(|error| unreadable(format!("the provider sent no JSON: {error}")))?;
    if is_too_deep(&value) {
        let message = format!("the provider sent JSON of more than {DEPTH_MAX} levels");
        return Err(unreadable(message));
    }
    Ok(value)
}

/// Whether a value nests deeper than the journal may keep it.
pub(crate) fn is_too_deep(value: &Value) -> bool {
    fn fits(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(items) => levels > 0 && items.iter().all(|item| fits(item, levels - 1)),
            Value::Object(members) => {
                levels > 0 && members.values().all(|member| fits(member, levels - 1))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        }
    }
    !fits(value, DEPTH_MAX)
}

/// Adds a part to an answer that comes in events.
pub(crate) fn add_part<P>(parts: &mut Vec<P>, part: P) -> Result<(), ModelError> {
    if parts.len() == PARTS_MAX {
        return Err(too_many_parts());
    }
    parts.push(part);
    Ok(())
}

/// An answer that came in one piece has no more parts than one that comes in events.
pub(crate) fn bounded(response: Response) -> Result<Response, ModelError> {
    match response.blocks.len() > PARTS_MAX {
        true => Err(too_many_parts().with_usage(response.usage)),
        false => Ok(response),
    }
}

fn too_many_parts() -> ModelError {
    let message = format!("the answer has more than {PARTS_MAX} parts");
    ModelError::new(Failure::Unreadable, message)
}

/// An error that came where an answer was to come.
pub(crate) fn in_stream_error(body: &Value) -> ModelError {
    judge(Answered {
        body: &body.to_string(),
        ..Answered::default()
    })
}

/// An answer that ended before its end.
pub(crate) fn cut(missing: &str) -> ModelError {
    ModelError::new(
        Failure::Cut,
        format!("the answer was cut off: it has no {missing}"),
    )
}

/// A reason for the end that no version of the loop knows how to act on.
pub(crate) fn unknown_finish(reason: &str) -> ModelError {
    let reason: String = reason.chars().take(64).collect();
    ModelError::new(
        Failure::Unreadable,
        format!("the provider ended its answer for a reason that is not known: {reason:?}"),
    )
}

pub(crate) fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A name or an id, which stands in events and spans too.
pub(crate) fn name_of(value: &Value, name: &str) -> String {
    head(text_of(value, name), NAME_BYTES_MAX).to_owned()
}

pub(crate) fn number_of(value: &Value, path: &[&str]) -> Option<u64> {
    let found = path.iter().try_fold(value, |value, name| value.get(name))?;
    found.as_u64()
}

/// Adds to a member that is a text, or makes it one.
pub(crate) fn append(value: &mut Value, name: &str, more: &str) {
    match value.get_mut(name) {
        Some(Value::String(text)) => text.push_str(more),
        Some(_) | None => {
            if let Some(members) = value.as_object_mut() {
                members.insert(name.to_owned(), Value::String(more.to_owned()));
            }
        }
    }
}
