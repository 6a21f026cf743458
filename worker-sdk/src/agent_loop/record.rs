//! What the loop writes into the journal.
//!
//! Owns the shape of the three steps' results, `model`, `tool/<name>` and `compact`, and the keys
//! that tell them apart. The raw answer of a model stands here and nowhere else.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::excerpt::{head, tail};
use super::response::Response;

/// The name of a step that calls the model.
pub(crate) const MODEL: &str = "model";

/// The name of a step that makes the conversation shorter.
pub(crate) const COMPACT: &str = "compact";

/// The most bytes of a tool's result that are recorded, as JSON; beyond it head and tail. Well
/// under the least limit of an entry.
pub(crate) const STORED_BYTES_MAX: usize = 768 * 1024;

/// The name of a step that runs a tool.
pub(crate) fn tool_step(tool: &str) -> String {
    format!("tool/{tool}")
}

/// The key of a model call or of a compaction before it.
pub(crate) fn turn_key(turn: u32) -> String {
    format!("turn-{turn}")
}

/// The key of a tool call: its id, unless that is a number, which the journal keeps for itself, or
/// looks like the key of one. Two ids never have one key.
pub(crate) fn call_key(call_id: &str) -> Cow<'_, str> {
    let number = call_id.trim_start_matches("call-");
    if number.bytes().all(|byte| byte.is_ascii_digit()) {
        Cow::Owned(format!("call-{call_id}"))
    } else {
        Cow::Borrowed(call_id)
    }
}

/// What came of a model call, as far as the loop can go on from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum ModelRecord {
    /// A complete answer.
    Answered { response: Box<Response> },
    /// The provider found the input too long.
    TooLong { message: String },
}

/// What came of a tool call that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolRecord {
    pub(crate) status: ToolStatus,
    /// For the model.
    pub(crate) text: String,
    /// The size of the text before it was cut to be recorded.
    pub(crate) bytes: u64,
    /// For an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<String>,
    /// How often it was tried.
    pub(crate) tries: u32,
}

/// How a tool call that was run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolStatus {
    Ok,
    Error,
    Timeout,
    /// The run cannot go on.
    Fatal,
    /// Nobody knows whether it had its effect.
    Unknown,
}

impl ToolStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Fatal => "fatal",
            Self::Unknown => "unknown",
        }
    }
}

impl ToolRecord {
    pub(crate) fn new(status: ToolStatus, text: String, tries: u32) -> Self {
        let bytes = text.len() as u64;
        Self {
            status,
            text: storable(text),
            bytes,
            operator: None,
            tries,
        }
    }

    /// What the model is shown of it.
    pub(crate) fn shown(&self, bytes_max: usize) -> String {
        cut(&self.text, self.bytes, bytes_max).into_owned()
    }
}

/// A text that fits into an entry of the journal, also where its JSON is longer than it.
fn storable(text: String) -> String {
    /// The most bytes a byte of text can take in JSON.
    const ESCAPED: usize = 6;
    if text.len() * ESCAPED <= STORED_BYTES_MAX {
        return text;
    }
    let json = serde_json::to_string(&text).map_or(usize::MAX, |json| json.len());
    if json <= STORED_BYTES_MAX {
        return text;
    }
    let bytes = text.len() as u64;
    // In proportion first; where the escapes stand close, by the worst case.
    let share = text.len() * 9 / 10 * STORED_BYTES_MAX / json.max(1);
    let shorter = cut(&text, bytes, share);
    let json = serde_json::to_string(&shorter).map_or(usize::MAX, |json| json.len());
    if json <= STORED_BYTES_MAX {
        return shorter.into_owned();
    }
    cut(&text, bytes, STORED_BYTES_MAX / ESCAPED).into_owned()
}

/// Head and tail of a text that is too long, with the true size between.
pub(crate) fn cut(text: &str, true_bytes: u64, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    const NOTE_BYTES: usize = 100;
    let room = bytes_max.saturating_sub(NOTE_BYTES);
    Cow::Owned(format!(
        "{}\n[... the result has {true_bytes} bytes; the middle is left out ...]\n{}",
        head(text, room * 2 / 3),
        tail(text, room / 3)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_recorded_whole_up_to_the_limit_and_shown_cut() {
        let text = "é".repeat(100_000);
        let record = ToolRecord::new(ToolStatus::Ok, text.clone(), 1);
        assert_eq!(record.text, text);
        let shown = record.shown(64 * 1024);
        assert!(shown.len() <= 64 * 1024, "{}", shown.len());
        assert!(shown.contains("200000 bytes") && shown.starts_with('é') && shown.ends_with('é'));
        assert_eq!(record.shown(1 << 20), text);
    }

    #[test]
    fn no_result_is_too_large_to_be_recorded() {
        for text in [
            "x".repeat(5_000_000),
            "\u{1}".repeat(400_000),
            "\"\n".repeat(3_000_000),
        ] {
            let record = ToolRecord::new(ToolStatus::Ok, text.clone(), 1);
            let stored = serde_json::to_vec(&record).expect("JSON");
            assert!(stored.len() < STORED_BYTES_MAX + 1_000, "{}", stored.len());
            assert!(stored.len() > STORED_BYTES_MAX / 8, "{}", stored.len());
            assert_eq!(record.bytes, text.len() as u64);
            assert!(record.text.contains(&format!("{} bytes", text.len())));
        }
    }

    #[test]
    fn no_key_of_a_call_is_a_number() {
        assert_eq!(call_key("toolu_1"), "toolu_1");
        assert_eq!(call_key("17"), "call-17");
        assert_eq!(call_key("call-17"), "call-call-17");
        assert_eq!(call_key("call-x"), "call-x");
    }
}
