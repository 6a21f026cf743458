//! Recorded bodies of providers, read by tests where the machine has them, and the checks that
//! hold for all of them.
//!
//! The folder is named by `HARNESS_FIXTURES`. Without it such a test says that it is skipped; with
//! it every file that is missing is a failure.

use std::path::PathBuf;

use serde_json::Value;

use super::decoding::{Decoder, Incoming};
use super::failure::{Failure, ModelError};
use super::message::Call;
use super::response::{Finish, Response, Usage};

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn say_skipped(name: &str) {
    println!("skipped: HARNESS_FIXTURES names no folder with {name}");
}

/// A recorded body; None, with a line that says so, where no folder is named.
pub(crate) fn body(name: &str) -> Option<String> {
    let Some(folder) = std::env::var_os("HARNESS_FIXTURES") else {
        say_skipped(name);
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    let text = std::fs::read_to_string(&path);
    Some(text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The names of the recorded bodies of a provider; None where no folder is named.
pub(crate) fn names(provider: &str) -> Option<Vec<String>> {
    let folder = PathBuf::from(std::env::var_os("HARNESS_FIXTURES")?).join(provider);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("a name"))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{} is empty", folder.display());
    Some(names)
}

/// What a body is expected to decode to.
pub(crate) struct Expected {
    pub(crate) file: &'static str,
    pub(crate) finish: Finish,
    pub(crate) raw_finish: &'static str,
    pub(crate) answered_by: &'static str,
    /// How the text begins.
    pub(crate) text: &'static str,
    /// id, name, arguments.
    pub(crate) calls: &'static [(&'static str, &'static str, &'static str)],
    /// input, cached, output, reasoning.
    pub(crate) usage: (u64, Option<u64>, u64, Option<u64>),
    /// The types of the raw blocks, in order.
    pub(crate) raw: &'static [&'static str],
}

impl Expected {
    /// `raw` is what the body itself has as the provider's blocks.
    pub(crate) fn check(&self, response: &Response, raw: &[Value]) {
        let file = self.file;
        assert_eq!(response.raw, raw, "{file}");
        assert_eq!(response.finish, self.finish, "{file}");
        assert_eq!(response.finish_raw, self.raw_finish, "{file}");
        assert_eq!(response.answered_by, self.answered_by, "{file}");
        assert!(
            response.text().starts_with(self.text),
            "{file}: {}",
            response.text()
        );
        let calls: Vec<(&str, &str, &str)> = response
            .calls()
            .into_iter()
            .map(|call: &Call| {
                (
                    call.id.as_str(),
                    call.name.as_str(),
                    call.arguments.as_str(),
                )
            })
            .collect();
        assert_eq!(calls, self.calls, "{file}");
        let usage = &response.usage;
        let (input, cached, output, reasoning) = self.usage;
        assert_eq!(usage.input_tokens, Some(input), "{file}");
        assert_eq!(usage.cached_tokens, cached, "{file}");
        assert_eq!(usage.output_tokens, Some(output), "{file}");
        assert_eq!(usage.reasoning_tokens, reasoning, "{file}");
        assert!(usage.raw.is_object(), "{file}");
        let raw: Vec<&str> = response
            .raw
            .iter()
            .map(|block| {
                block["type"]
                    .as_str()
                    .or(block["role"].as_str())
                    .unwrap_or("?")
            })
            .collect();
        assert_eq!(raw, self.raw, "{file}");
    }
}

/// The data of a stream's events.
fn events(body: &str) -> impl Iterator<Item = Value> {
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).expect("JSON"))
}

/// The blocks of a stream of Anthropic's, put together by one rule, whatever they are: what a piece
/// has under a name goes behind what is there.
#[cfg(feature = "anthropic")]
pub(crate) fn blocks(body: &str) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    for event in events(body) {
        match event["type"].as_str() {
            Some("content_block_start") => blocks.push(event["content_block"].clone()),
            Some("content_block_delta") => {
                let index = event["index"].as_u64().expect("an index");
                let mut delta = event["delta"].clone();
                delta["type"].take();
                joined(
                    &mut blocks[usize::try_from(index).expect("a small one")],
                    &delta,
                );
            }
            Some(_) | None => {}
        }
    }
    for block in &mut blocks {
        let members = block.as_object_mut().expect("an object");
        let arguments = members.remove("partial_json");
        if let Some(text) = arguments
            .as_ref()
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
        {
            block["input"] = serde_json::from_str(text).expect("JSON");
        }
    }
    blocks
}

/// The message of a stream of chat completions, put together by the same rule.
#[cfg(feature = "openai")]
pub(crate) fn message(body: &str) -> Value {
    let mut message = Value::Object(serde_json::Map::new());
    for event in events(body) {
        joined(&mut message, &event["choices"][0]["delta"]);
    }
    message
}

fn joined(whole: &mut Value, piece: &Value) {
    match (whole, piece) {
        (_, Value::Null) => {}
        (Value::String(text), Value::String(more)) => text.push_str(more),
        (Value::Object(members), Value::Object(more)) => {
            for (name, value) in more.iter().filter(|(_, value)| !value.is_null()) {
                joined(members.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(items), Value::Array(more)) => {
            for piece in more {
                match items
                    .iter_mut()
                    .find(|item| item["index"] == piece["index"])
                {
                    Some(item) => joined(item, piece),
                    None => items.push(piece.clone()),
                }
            }
        }
        (whole, piece) => *whole = piece.clone(),
    }
}

/// Decodes a stream that comes in these parts.
pub(crate) fn decoded<D: Decoder>(decoder: D, parts: &[&[u8]]) -> Result<Response, ModelError> {
    let mut incoming = Incoming::new(decoder);
    for part in parts {
        incoming.feed(part)?;
    }
    incoming.finish()
}

/// Cut before the end of its terminal event a stream is never complete; cut behind it is the same
/// answer, of which only the usage may be unknown. `terminal` is text that only the terminal event
/// has.
pub(crate) fn check_every_cut<D: Decoder>(
    name: &str,
    body: &str,
    terminal: &str,
    make: impl Fn() -> D,
) {
    let bytes = body.as_bytes();
    let whole = decoded(make(), &[bytes]).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let begin = body
        .find(terminal)
        .unwrap_or_else(|| panic!("{name} has no {terminal}"));
    let end = begin + body[begin..].find("\n\n").expect("the end of the event") + 2;
    for cut in 0..=bytes.len() {
        match decoded(make(), &[&bytes[..cut]]) {
            Ok(response) => {
                assert!(
                    cut >= end,
                    "{name} is complete when cut at {cut}, before {end}"
                );
                let of = |response: &Response| Response {
                    usage: Usage::default(),
                    ..response.clone()
                };
                assert_eq!(of(&response), of(&whole), "{name} cut at {cut}");
            }
            Err(error) => {
                assert!(cut < end, "{name} cut at {cut}, behind {end}: {error:?}");
                assert_eq!(
                    error.failure(),
                    Failure::Cut,
                    "{name} cut at {cut}: {error:?}"
                );
            }
        }
        // Where the parts of a stream begin and end says nothing; that costs a whole stream each.
        if cut % 13 != 0 {
            continue;
        }
        let parts = decoded(make(), &[&bytes[..cut], &bytes[cut..]]);
        assert_eq!(
            parts.expect("the whole stream"),
            whole,
            "{name} in two parts at {cut}"
        );
    }
}
