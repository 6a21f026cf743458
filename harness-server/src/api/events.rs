//! The JSON forms that plain HTTP sees: errors, and the entries of a run as server-sent events.

use bytes::Bytes;
use prost::Message;
use serde_json::{Value, json};
use tonic::Status;
use tonic_types::pb;

use harness_proto::relay::{self, ask_stream_response::Event};
use harness_proto::v1::{self, entry::Kind};

use crate::envelope::{Failure, Payload};

use super::convert;

/// An error as JSON.
pub(super) fn error_to_json(failure: &Failure) -> Value {
    proto_error_to_json(&convert::error_to_proto(failure))
}

fn proto_error_to_json(error: &relay::Error) -> Value {
    let code = error.code().as_str_name().trim_start_matches("ERROR_CODE_");
    let mut json = json!({
        "code": code,
        "message": error.message,
        "retryable": error.retryable,
    });
    let mut put = |key: &str, value: Value| json[key] = value;
    if !error.r#type.is_empty() {
        put("type", json!(error.r#type));
    }
    if let Some(wait) = error
        .retry_after
        .as_ref()
        .and_then(convert::duration_from_proto)
    {
        put("retry_after_seconds", json!(wait.as_secs_f64()));
    }
    if let Some(details) = &error.details {
        put("details", value_of(&details.content_type, &details.data));
    }
    if let Some(cause) = &error.cause {
        put("cause", proto_error_to_json(cause));
    }
    if !error.run_id.is_empty() {
        put("run_id", json!(error.run_id));
    }
    if error.attempt > 0 {
        put("attempt", json!(error.attempt));
    }
    json
}

/// A payload as JSON: itself, its text, or where it is neither its base64.
fn value_of(content_type: &str, data: &Bytes) -> Value {
    let payload = Payload {
        content_type: content_type.to_owned(),
        data: data.clone(),
    };
    if payload.is_json()
        && let Ok(value) = serde_json::from_slice(data)
    {
        return value;
    }
    match std::str::from_utf8(data) {
        Ok(text) => json!({ "content_type": content_type, "text": text }),
        Err(_) => {
            use base64::Engine;
            let encoded = base64::engine::general_purpose::STANDARD.encode(data);
            json!({ "content_type": content_type, "base64": encoded })
        }
    }
}

/// One server-sent event.
pub(super) fn to_sse(answer: Result<relay::AskStreamResponse, Status>) -> Bytes {
    let (name, data) = match answer {
        Ok(answer) => match answer.event {
            Some(Event::Run(run)) => ("run", json!({ "run_id": run.run_id })),
            Some(Event::Entry(entry)) => return entry_to_sse(&entry),
            Some(Event::Gap(gap)) => ("gap", json!({ "first_kept": gap.first_kept })),
            Some(Event::Heartbeat(_)) | None => return Bytes::from_static(b": heartbeat\n\n"),
            Some(Event::Reply(reply)) => {
                let payload = reply.payload.unwrap_or_default();
                ("reply", value_of(&payload.content_type, &payload.data))
            }
        },
        Err(status) => ("error", status_to_json(&status)),
    };
    event(None, name, &data)
}

fn entry_to_sse(entry: &relay::JournalEntry) -> Bytes {
    let kind = v1::Entry::decode(entry.entry.clone())
        .ok()
        .and_then(|entry| entry.kind);
    let (name, data) = match kind {
        Some(Kind::Output(output)) => {
            let payload = output.payload.unwrap_or_default();
            ("output", value_of(&payload.content_type, &payload.data))
        }
        Some(Kind::Progress(progress)) => {
            let (fraction, message) = (progress.fraction, progress.message);
            (
                "progress",
                json!({ "fraction": fraction, "message": message }),
            )
        }
        Some(Kind::Log(log)) => {
            let level = log.level().as_str_name().trim_start_matches("LOG_LEVEL_");
            ("log", json!({ "level": level, "message": log.message }))
        }
        Some(Kind::AttemptStarted(started)) => (
            "attempt_started",
            json!({ "attempt": entry.attempt, "worker": started.worker_name }),
        ),
        _ => return Bytes::new(),
    };
    event(Some(entry.seq), name, &data)
}

/// The error of a status of ours; its text where it is another.
fn status_to_json(status: &Status) -> Value {
    let details = pb::Status::decode(status.details()).unwrap_or_default();
    details
        .details
        .iter()
        .filter(|any| any.type_url.ends_with("/harness.v1.Error"))
        .find_map(|any| relay::Error::decode(&*any.value).ok())
        .map_or_else(
            || json!({ "code": "INTERNAL", "message": status.message(), "retryable": false }),
            |error| proto_error_to_json(&error),
        )
}

fn event(id: Option<u64>, name: &str, data: &Value) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {data}\n\n").into()
}
