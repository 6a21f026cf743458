//! How plain types are written as JSON: spans in seconds, times as RFC 3339, payloads as the JSON
//! they are.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::payload::Payload;

pub(super) fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

pub(super) fn maybe_seconds<S: Serializer>(
    span: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => seconds(span, serializer),
        None => serializer.serialize_none(),
    }
}

pub(super) fn time<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(&prost_types::Timestamp::from(*time)),
        None => serializer.serialize_none(),
    }
}

/// JSON as it is, numbers and order of keys included; anything else as an object with its media
/// type and `text` or `base64`.
pub(super) fn payload<S: Serializer>(payload: &Payload, serializer: S) -> Result<S::Ok, S::Error> {
    if payload.is_json() {
        if payload.data().is_empty() {
            return serializer.serialize_none();
        }
        if let Ok(raw) = serde_json::from_slice::<&RawValue>(payload.data()) {
            return raw.serialize(serializer);
        }
    }
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("content_type", payload.content_type())?;
    match std::str::from_utf8(payload.data()) {
        Ok(text) => map.serialize_entry("text", text)?,
        Err(_) => map.serialize_entry("base64", &STANDARD.encode(payload.data()))?,
    }
    map.end()
}

pub(super) fn maybe_payload<S: Serializer>(
    given: &Option<Payload>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match given {
        Some(given) => payload(given, serializer),
        None => serializer.serialize_none(),
    }
}
