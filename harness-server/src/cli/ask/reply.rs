//! Printing a reply.

use std::borrow::Cow;

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
            let (media_type, text) = (quoted(payload.content_type()), base64(payload.data()));
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

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits: u32, at| {
            bits << 8 | u32::from(group.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= group.len() {
                char::from(DIGITS[value as usize])
            } else {
                '='
            });
        }
    }
    text
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
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }
}
