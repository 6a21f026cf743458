//! What the loop writes into the journal.
//!
//! Owns the shape of the three steps' results, `model`, `tool/<name>` and `compact`, and the keys
//! that tell them apart. The raw answer of a model stands here and nowhere else.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::budget::TokenCounter;
use super::excerpt::{head, tail};
use super::machine::{Machine, Used};
use super::response::Response;

/// The name of a step that calls the model.
pub(crate) const MODEL: &str = "model";

/// The name of a step that makes the conversation shorter.
pub(crate) const COMPACT: &str = "compact";

/// The most bytes of a tool's result that are recorded, as JSON; beyond it head and tail. Where an
/// entry may have less, it is that.
pub(crate) const STORED_BYTES_MAX: usize = 768 * 1024;

/// The most bytes of what an operator is told of a tool's failure, as JSON.
const OPERATOR_BYTES_MAX: usize = 8 * 1024;

/// What an entry has beside a record's texts and the names of its step.
const ENVELOPE_BYTES: usize = 256;

/// The most bytes of an error's text that the model is shown.
pub(crate) const ERROR_BYTES_MAX: usize = 2_000;

/// The name of a step that runs a tool.
pub(crate) fn tool_step(tool: &str) -> String {
    format!("tool/{tool}")
}

/// The key of a model call.
pub(crate) fn turn_key(turn: u32) -> String {
    format!("turn-{turn}")
}

/// The key of the compaction before a model call that comes after so many others. Each has its
/// own, so what is recorded of one never stands for another.
pub(crate) fn compaction_key(turn: u32, before: u32) -> String {
    match before {
        0 => turn_key(turn),
        _ => format!("turn-{turn}-{}", before + 1),
    }
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
    Answered {
        response: Box<Response>,
        /// The digest of the prompt of the run.
        prompt: String,
        /// What its tries before used, in all attempts.
        #[serde(default, skip_serializing_if = "Used::is_nothing")]
        lost: Used,
    },
    /// The provider found the input too long.
    TooLong {
        message: String,
        #[serde(default, skip_serializing_if = "Used::is_nothing")]
        lost: Used,
    },
    /// Its tries used what the run may use, and none came to an answer.
    Spent { lost: Used },
}

impl ModelRecord {
    /// Tells the machine what came of its call.
    pub(crate) fn feed(self, machine: &mut Machine, counter: &dyn TokenCounter) {
        match self {
            Self::Answered { response, lost, .. } => {
                machine.lost(lost);
                machine.model_response(*response, counter);
            }
            Self::TooLong { lost, .. } => {
                machine.lost(lost);
                machine.context_exceeded();
            }
            Self::Spent { lost } => {
                machine.lost(lost);
                machine.given_up();
            }
        }
    }
}

/// The details of the error that a failed model call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedCall {
    /// What its tries used, in all attempts.
    pub(crate) lost: Used,
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
    /// A hook did not let it run.
    Denied,
}

impl ToolStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Fatal => "fatal",
            Self::Unknown => "unknown",
            Self::Denied => "denied",
        }
    }
}

impl ToolRecord {
    /// Of a call that a hook did not let run.
    pub(crate) fn denied(why: &str) -> Self {
        let why = head(why, ERROR_BYTES_MAX);
        let colon = if why.is_empty() { "." } else { ": " };
        let text = format!("This call was denied and did not run{colon}{why}");
        Self::new(ToolStatus::Denied, text, 0)
    }

    pub(crate) fn new(status: ToolStatus, text: String, tries: u32) -> Self {
        let bytes = text.len() as u64;
        Self {
            status,
            text,
            bytes,
            operator: None,
            tries,
        }
    }

    /// The record cut to what the journal takes: an entry of at most so many bytes, with the names
    /// of this step in it.
    pub(crate) fn storable(mut self, entry_bytes_max: u64, step: &str, key: &str) -> Self {
        // Both stand once by themselves and once in the idempotency key, with the run's id.
        let around = 2 * (step.len() + key.len()) + ENVELOPE_BYTES;
        let most = usize::try_from(entry_bytes_max).unwrap_or(usize::MAX);
        let most = most.saturating_sub(around).min(STORED_BYTES_MAX);
        self.operator = self
            .operator
            .map(|text| beginning(text, OPERATOR_BYTES_MAX.min(most / 4)));
        let operator = self.operator.as_deref().map_or(0, json_bytes);
        self.text = fitting(self.text, most.saturating_sub(operator));
        self
    }

    /// What the model is shown of it.
    pub(crate) fn shown(&self, bytes_max: usize) -> String {
        cut(&self.text, self.bytes, bytes_max).into_owned()
    }
}

/// The most bytes a byte of text can take in JSON.
pub(crate) const ESCAPED: usize = 6;

fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

/// Head and tail of a text, whose JSON has at most so many bytes.
fn fitting(text: String, json_bytes_max: usize) -> String {
    if text.len().saturating_mul(ESCAPED) <= json_bytes_max {
        return text;
    }
    let bytes = text.len() as u64;
    // No JSON is shorter than its text: what is surely too much need not be written to be measured.
    let first = cut(&text, bytes, json_bytes_max);
    let json = json_bytes(&first);
    if json <= json_bytes_max {
        return first.into_owned();
    }
    // In proportion first; where the escapes stand close, by the worst case.
    let share = first.len() * 9 / 10 * json_bytes_max / json.max(1);
    let shorter = cut(&text, bytes, share);
    if json_bytes(&shorter) <= json_bytes_max {
        return shorter.into_owned();
    }
    cut(&text, bytes, json_bytes_max / ESCAPED).into_owned()
}

/// The beginning of a text, whose JSON has at most so many bytes.
fn beginning(text: String, json_bytes_max: usize) -> String {
    let shorter = head(&text, json_bytes_max.saturating_sub(2));
    if json_bytes(shorter) <= json_bytes_max {
        return shorter.to_owned();
    }
    head(&text, json_bytes_max / ESCAPED).to_owned()
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
    use crate::journal::{Entry, Step};
    use crate::payload::Payload;

    #[test]
    fn a_result_is_recorded_whole_up_to_the_limit_and_shown_cut() {
        let text = "é".repeat(100_000);
        let record = ToolRecord::new(ToolStatus::Ok, text.clone(), 1);
        let record = record.storable(1 << 20, "tool/x", "c1");
        assert_eq!(record.text, text);
        let shown = record.shown(64 * 1024);
        assert!(shown.len() <= 64 * 1024, "{}", shown.len());
        assert!(shown.contains("200000 bytes") && shown.starts_with('é') && shown.ends_with('é'));
        assert_eq!(record.shown(1 << 20), text);
    }

    /// The entry that a record becomes.
    fn entry(record: &ToolRecord, name: &str, key: &str) -> Entry {
        Entry::Step(Box::new(Step {
            name: name.to_owned(),
            key: key.to_owned(),
            idempotency_key: format!("00000000-0000-7000-8000-000000000000/{name}/{key}"),
            outcome: Some(Ok(Payload::json(record).expect("JSON"))),
        }))
    }

    #[test]
    fn no_result_is_too_large_to_be_recorded_whatever_the_limit_of_an_entry() {
        let name = tool_step(&"x".repeat(64));
        let key = "k".repeat(256);
        // The least limit a harness can have, the usual one and none.
        for limit in [1024, 2_000, 10_000, 1 << 20, u64::MAX] {
            for part in ["x", "\u{1}", "\"\n", "é"] {
                let text = part.repeat(2_000_000);
                let mut record = ToolRecord::new(ToolStatus::Error, text.clone(), u32::MAX);
                record.operator = Some(text.clone());
                let record = record.storable(limit, &name, &key);
                let bytes = entry(&record, &name, &key).to_bytes().len();
                let most = usize::try_from(limit).unwrap_or(usize::MAX);
                assert!(bytes <= most, "{bytes} of {limit}, {part:?}");
                let useful = most.min(STORED_BYTES_MAX).saturating_sub(1024) / 8;
                assert!(bytes >= useful, "{bytes} of {limit}, {part:?}");
                let full = most.min(STORED_BYTES_MAX).saturating_sub(1024);
                assert!(part != "x" || bytes >= full, "{bytes} of {limit}");
                assert_eq!(record.bytes, text.len() as u64);
                assert!(record.text.contains(&format!("{} bytes", text.len())));
            }
        }
    }

    #[test]
    fn what_an_operator_is_told_is_bounded() {
        for part in ["x", "\u{1}", "é"] {
            let mut record = ToolRecord::new(ToolStatus::Error, "failed".to_owned(), 1);
            record.operator = Some(part.repeat(1_000_000));
            let told = record.storable(1 << 20, "tool/x", "c1").operator;
            let told = told.expect("it is told");
            assert!(json_bytes(&told) <= OPERATOR_BYTES_MAX, "{}", told.len());
            assert!(json_bytes(&told) > OPERATOR_BYTES_MAX / 2, "{}", told.len());
            assert!(part.repeat(1_000_000).starts_with(&told));
        }
        let mut record = ToolRecord::new(ToolStatus::Error, "failed".to_owned(), 1);
        record.operator = Some("code 17".to_owned());
        let same = record.clone();
        assert_eq!(record.storable(1 << 20, "tool/x", "c1"), same);
    }

    #[test]
    fn no_key_of_a_call_is_a_number() {
        assert_eq!(call_key("toolu_1"), "toolu_1");
        assert_eq!(call_key("17"), "call-17");
        assert_eq!(call_key("call-17"), "call-call-17");
        assert_eq!(call_key("call-x"), "call-x");
    }
}
