//! How a mismatch reads: where, which keyword, what was expected and what came.

use jsonschema::{ValidationError, Validator};
use serde_json::{Value, json};

use crate::envelope::{Failure, Payload};

use super::Subject;

/// How many mismatches an error lists at most.
const MISMATCHES_LISTED: usize = 8;

/// How many bytes of a value an error shows at most.
const SHOWN_BYTES: usize = 200;

/// The error for a value that a validator of `schema` refuses. Looks for every mismatch there is.
pub(super) fn mismatches(
    schema: &Value,
    validator: &Validator,
    subject: Subject,
    value: &Value,
) -> Box<Failure> {
    let mismatches: Vec<Value> = validator
        .iter_errors(value)
        .take(MISMATCHES_LISTED)
        .map(|error| mismatch(schema, &error))
        .collect();
    let first = mismatches.first().cloned().unwrap_or_default();
    let pointer = first["pointer"].as_str().unwrap_or_default();
    let message = format!(
        "the {subject} does not match the agent's schema: at {}: {} expects {}, got {}",
        if pointer.is_empty() {
            "the top"
        } else {
            pointer
        },
        first["keyword"].as_str().unwrap_or_default(),
        first["expected"],
        first["got"],
    );
    let details = Payload::json(&json!({ "mismatches": mismatches }));
    Box::new(Failure::new(subject.code(), message).with_details(details))
}

/// The error for a value with more mismatches than can be looked at.
pub(super) fn too_many(subject: Subject) -> Box<Failure> {
    let message =
        format!("the {subject} does not match the agent's schema, in too many places to list");
    Box::new(Failure::new(subject.code(), message))
}

/// The error for what is not JSON.
pub(super) fn not_json(subject: Subject, error: &serde_json::Error) -> Box<Failure> {
    let message = format!("the {subject} is not JSON: {error}");
    Box::new(Failure::new(subject.code(), message))
}

fn mismatch(schema: &Value, error: &ValidationError<'_>) -> Value {
    let expected = schema.pointer(error.schema_path().as_str());
    json!({
        "pointer": error.instance_path().as_str(),
        "keyword": error.kind().keyword(),
        "expected": bounded(expected.unwrap_or(&Value::Null)),
        "got": bounded(error.instance()),
    })
}

/// A value as it is when it is short, else its beginning as text.
fn bounded(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= SHOWN_BYTES {
        value.clone()
    } else {
        Value::String(shown(&text))
    }
}

/// The beginning of a text.
pub(super) fn shown(text: &str) -> String {
    let mut end = text.len().min(SHOWN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let more = if end < text.len() { "..." } else { "" };
    format!("{}{more}", &text[..end])
}
