//! Printing a reply.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use worker_sdk::{Answer, Payload};

use crate::cli::error::CliError;
use crate::cli::output;

/// Prints a reply; with `json` as one object that holds it.
pub(super) fn print(answer: &Answer<Payload>, json: bool) -> Result<(), CliError> {
    if json {
        return output::line(&object(answer));
    }
    output::bytes(&text(&answer.value))
}

/// A payload for a person: a string without its quotes, other JSON as it came, each on a line; what
/// is no JSON as its bytes.
pub(super) fn text(payload: &Payload) -> Vec<u8> {
    if !payload.is_json() {
        return payload.data().to_vec();
    }
    let mut text = match payload.to_json::<String>() {
        Ok(text) => text.into_bytes(),
        Err(_) => payload.data().to_vec(),
    };
    text.push(b'\n');
    text
}

/// An answer as a JSON object.
pub(super) fn object(answer: &Answer<Payload>) -> String {
    format!("{{{}}}", members(answer))
}

/// The members of that object. Text, because a reply must keep its numbers and the order of its keys.
pub(super) fn members(answer: &Answer<Payload>) -> String {
    let (run_id, attempt) = (quoted(&answer.run_id), answer.attempt);
    let reply = member("reply", &answer.value);
    format!("\"run_id\":{run_id},\"attempt\":{attempt},{reply}")
}

/// A payload as a member of a JSON object: JSON as it came, on one line; what is no JSON as text or in
/// base64, after its media type.
pub(super) fn member(name: &str, payload: &Payload) -> String {
    match std::str::from_utf8(payload.data()) {
        Ok(text) if payload.is_json() && is_json(text) => {
            format!("\"{name}\":{}", on_one_line(text))
        }
        Ok(text) => {
            let (media_type, text) = (quoted(payload.content_type()), quoted(text));
            format!("\"content_type\":{media_type},\"{name}\":{text}")
        }
        Err(_) => {
            let (media_type, text) = (
                quoted(payload.content_type()),
                STANDARD.encode(payload.data()),
            );
            format!("\"content_type\":{media_type},\"{name}_base64\":\"{text}\"")
        }
    }
}

/// Whether a text is the JSON it says it is: without a reply schema the harness does not look.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Line breaks of JSON stand between its values, never in them.
fn on_one_line(json: &str) -> Cow<'_, str> {
    if json.contains(['\n', '\r']) {
        Cow::Owned(json.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(json)
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_says_that_it_is_json_is_told_as_text() {
        let broken = Payload::new("application/json", "{\"a\":");
        let object = format!("{{{}}}", member("reply", &broken));
        let told: serde_json::Value = serde_json::from_str(&object).expect("valid JSON");
        assert_eq!(told["reply"], "{\"a\":");
        let sound = Payload::new("application/json", "{\"a\": 1.0}");
        assert_eq!(member("reply", &sound), "\"reply\":{\"a\": 1.0}");
    }

    #[test]
    fn bytes_become_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(STANDARD.encode(bytes), text);
        }
        let payload = Payload::new("image/png", vec![0xff, 0xfe]);
        let object = format!("{{{}}}", member("reply", &payload));
        let told: serde_json::Value = serde_json::from_str(&object).expect("valid JSON");
        assert_eq!(told["reply_base64"], "//4=");
    }
}
