//! Printing a reply.

use worker_sdk::{Answer, Payload};

use crate::cli::error::CliError;
use crate::cli::output;

/// Prints a reply: a string without its quotes, other JSON as it came, and what is no JSON as its
/// bytes; with `json` as one object that holds the reply.
pub(super) fn print(answer: &Answer<Payload>, json: bool) -> Result<(), CliError> {
    if json {
        return output::line(&object(answer));
    }
    let reply = &answer.value;
    if !reply.is_json() {
        return output::bytes(reply.data());
    }
    match reply.to_json::<String>() {
        Ok(text) => output::line(&text),
        Err(_) => output::bytes(&[reply.data(), b"\n"].concat()),
    }
}

/// Text, because a reply must keep its numbers and the order of its keys.
fn object(answer: &Answer<Payload>) -> String {
    let reply = &answer.value;
    let (run_id, attempt) = (&answer.run_id, answer.attempt);
    let value = match std::str::from_utf8(reply.data()) {
        Ok(text) if reply.is_json() => format!("\"reply\":{text}"),
        Ok(text) => {
            let (media_type, text) = (quoted(reply.content_type()), quoted(text));
            format!("\"content_type\":{media_type},\"reply\":{text}")
        }
        Err(_) => {
            let (media_type, text) = (quoted(reply.content_type()), base64(reply.data()));
            format!("\"content_type\":{media_type},\"reply_base64\":\"{text}\"")
        }
    };
    format!(
        "{{\"run_id\":{},\"attempt\":{attempt},{value}}}",
        quoted(run_id)
    )
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
