//! The lines of the JSON Lines dialect: a request written, a reply read.
//!
//! Pure. A request's message goes out, and a reply's value comes in, as the bytes they were.

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::envelope::{Code, Failure, Payload, beginning};
use crate::ids::RunId;

/// How much of a line that is none an error repeats, in bytes.
const SHOWN_BYTES: usize = 120;

/// What a reply says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A value.
    Value(Payload),
    /// The agent's error.
    Error(String),
}

#[derive(Deserialize)]
struct Incoming<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    ok: Option<bool>,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// A field that is there, be it null.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// The line that asks.
///
/// # Errors
/// Why the payload cannot be asked in this dialect.
pub(super) fn request(run: RunId, payload: &Payload) -> Result<Vec<u8>, Box<Failure>> {
    let refused = |message: String| Box::new(Failure::new(Code::InvalidRequest, message));
    if !payload.is_json() {
        return Err(refused(format!(
            "this agent's workers speak JSON Lines and take application/json only, not \"{}\"",
            beginning(&payload.content_type, SHOWN_BYTES).escape_debug()
        )));
    }
    let data: &[u8] = if payload.data.is_empty() {
        b"null"
    } else {
        &payload.data
    };
    // What is no JSON could break out of its line.
    let text = std::str::from_utf8(data)
        .map_err(|_| refused("the payload is no JSON: it is not UTF-8".to_owned()))?;
    serde_json::from_str::<IgnoredAny>(text)
        .map_err(|error| refused(format!("the payload is no JSON: {error}")))?;
    let mut line = format!("{{\"id\":\"{run}\",\"message\":").into_bytes();
    let start = line.len();
    line.extend_from_slice(data);
    // In valid JSON they stand between values only.
    for byte in &mut line[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.extend_from_slice(b"}\n");
    Ok(line)
}

/// Reads the line that answers the request of `run`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn reply(run: RunId, line: &[u8]) -> Result<Reply, String> {
    let no_json = || {
        format!(
            "wrote a line on standard output that is no JSON reply: \"{}\"; print() and logs \
             belong on standard error",
            shown(line)
        )
    };
    let text = std::str::from_utf8(line).map_err(|_| no_json())?;
    let incoming: Incoming<'_> = serde_json::from_str(text).map_err(|_| no_json())?;
    let id = incoming.id.map_or("none", RawValue::get);
    if serde_json::from_str::<String>(id).ok() != Some(run.to_string()) {
        return Err(format!(
            "answered the id {} and not \"{run}\", which it was asked",
            shown(id.as_bytes())
        ));
    }
    match (incoming.ok, incoming.value, incoming.error) {
        (Some(true), Some(value), _) => Ok(Reply::Value(Payload {
            content_type: String::new(),
            data: Bytes::copy_from_slice(value.get().as_bytes()),
        })),
        (Some(false), _, Some(error)) => Ok(Reply::Error(
            serde_json::from_str::<String>(error.get()).unwrap_or_else(|_| error.get().to_owned()),
        )),
        (Some(true), None, _) => Err("answered \"ok\": true without a \"value\"".to_owned()),
        (Some(false), _, None) => Err("answered \"ok\": false without an \"error\"".to_owned()),
        (None, _, _) => Err("answered without \"ok\"".to_owned()),
    }
}

/// The beginning of what a worker wrote, safe to print.
pub(super) fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN_BYTES)]);
    let start = beginning(&text, SHOWN_BYTES);
    let more = if start.len() < line.len() { "..." } else { "" };
    format!("{}{more}", start.escape_debug())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const RUN: RunId = RunId(Uuid::from_u128(7));
    const ID: &str = "00000000-0000-0000-0000-000000000007";

    fn payload(content_type: &str, data: &'static str) -> Payload {
        Payload {
            content_type: content_type.to_owned(),
            data: data.into(),
        }
    }

    #[test]
    fn a_request_is_one_line_with_the_payload_as_it_is() {
        for (data, message) in [
            (r#""hello""#, r#""hello""#),
            ("", "null"),
            ("1.50", "1.50"),
            ("{\"b\": 1,\n \"a\":\r\n [2]}", "{\"b\": 1,  \"a\":   [2]}"),
            (r#""line\nbreak""#, r#""line\nbreak""#),
        ] {
            let line = request(RUN, &payload("", data)).expect("a line");
            let expected = format!("{{\"id\":\"{ID}\",\"message\":{message}}}\n");
            assert_eq!(String::from_utf8(line).expect("text"), expected);
        }
    }

    #[test]
    fn what_is_no_json_is_refused_and_reaches_no_line() {
        for (content_type, data) in [
            ("text/plain", "hello"),
            ("", "hello"),
            ("", "1}\n{\"id\":\"2\",\"message\":1"),
            ("", "\"a\nb\""),
            ("", "1 2"),
        ] {
            let refused = request(RUN, &payload(content_type, data)).expect_err("refused");
            assert_eq!(refused.code, Code::InvalidRequest, "{data}");
        }
        let not_text = Payload {
            content_type: String::new(),
            data: Bytes::from_static(b"\"\xff\""),
        };
        assert!(request(RUN, &not_text).is_err());
    }

    #[test]
    fn a_reply_is_a_value_as_it_is_or_the_agents_error() {
        let value = |text: &str| reply(RUN, format!("{{\"id\":\"{ID}\",{text}}}").as_bytes());
        for (text, data) in [
            (r#""ok":true,"value":"x""#, r#""x""#),
            (
                r#""ok": true, "value": {"b": 1.50, "a": [1, 2]}"#,
                r#"{"b": 1.50, "a": [1, 2]}"#,
            ),
            (r#""ok":true,"value":null"#, "null"),
            (
                r#""ok":true,"value":12345678901234567890123,"more":1"#,
                "12345678901234567890123",
            ),
        ] {
            let Ok(Reply::Value(payload)) = value(text) else {
                panic!("{text}: {:?}", value(text));
            };
            assert_eq!(
                (&payload.data[..], payload.is_json()),
                (data.as_bytes(), true)
            );
        }
        assert_eq!(
            value(r#""ok":false,"error":"it \"failed\"""#),
            Ok(Reply::Error("it \"failed\"".to_owned()))
        );
        assert_eq!(
            value(r#""ok":false,"error":{"code":1}"#),
            Ok(Reply::Error("{\"code\":1}".to_owned()))
        );
    }

    #[test]
    fn each_line_that_is_no_reply_is_told_for_what_it_is() {
        let whole = |text: &str| format!("{{\"id\":\"{ID}\",{text}}}");
        for (line, part) in [
            ("hello".to_owned(), "no JSON reply: \"hello\"; print()"),
            (String::new(), "no JSON reply: \"\""),
            ("[1]".to_owned(), "no JSON reply"),
            (
                r#"{"id":"1","ok":true,"value":1}"#.to_owned(),
                "answered the id \\\"1\\\" and not",
            ),
            (
                r#"{"id":1,"ok":true,"value":1}"#.to_owned(),
                "answered the id 1 and not",
            ),
            (
                r#"{"ok":true,"value":1}"#.to_owned(),
                "answered the id none",
            ),
            (whole(r#""ok":true"#), "without a \"value\""),
            (whole(r#""ok":false"#), "without an \"error\""),
            (whole(r#""value":1"#), "without \"ok\""),
            (whole(r#""ok":1,"value":1"#), "no JSON reply"),
        ] {
            let wrong = reply(RUN, line.as_bytes()).expect_err(&line);
            assert!(wrong.contains(part), "{line}: {wrong}");
        }
        let not_text = reply(RUN, b"\xff\xfe").expect_err("no text");
        assert!(not_text.contains("no JSON reply"), "{not_text}");
        let long = reply(RUN, "x".repeat(100_000).as_bytes()).expect_err("no JSON");
        assert!(long.len() < 300, "{}", long.len());
    }
}
