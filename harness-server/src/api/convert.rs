//! Messages to domain types and back, where both an ask and a slot need it.

use std::time::Duration;

use prost::Message;

use harness_proto::relay;

use crate::envelope::{Code, Failure, MESSAGE_BYTES, Payload, Trace, beginning};
use crate::ids::{Attempt, Delivery, RunId};
use crate::store::{Entry, Stamp};

/// Longest media type of a payload, in bytes.
pub(super) const CONTENT_TYPE_BYTES: u64 = 256;

/// A cause chain deeper than this is cut when it comes in.
const CAUSES_TAKEN: usize = 16;

/// What a worker's error may hold altogether, in bytes; the rest is cut and the error says so.
const ERROR_BYTES: usize = 64 * 1024;

/// What the type of one level may have, in bytes.
pub(super) const TYPE_BYTES: usize = 256;

pub(super) fn payload_from_proto(payload: relay::Payload) -> Payload {
    Payload {
        content_type: payload.content_type,
        data: payload.data,
    }
}

pub(super) fn payload_to_proto(payload: Payload) -> relay::Payload {
    relay::Payload {
        content_type: payload.content_type,
        data: payload.data,
    }
}

pub(super) fn trace_from_proto(trace: relay::TraceContext) -> Trace {
    Trace {
        parent: trace.traceparent,
        state: trace.tracestate,
    }
}

pub(super) fn trace_to_proto(trace: &Trace) -> relay::TraceContext {
    relay::TraceContext {
        traceparent: trace.parent.clone(),
        tracestate: trace.state.clone(),
    }
}

pub(super) fn delivery_to_proto(delivery: Delivery) -> relay::AttemptRef {
    relay::AttemptRef {
        run_id: delivery.run.to_string(),
        attempt: delivery.attempt.0,
    }
}

/// A delivery that is named; none when its run_id is no UUID.
pub(super) fn delivery_from_proto(delivery: &relay::AttemptRef) -> Option<Delivery> {
    Some(Delivery {
        run: RunId(delivery.run_id.parse().ok()?),
        attempt: Attempt(delivery.attempt),
    })
}

/// An entry as the store has it.
pub(super) fn entry_to_proto(entry: Entry) -> relay::JournalEntry {
    relay::JournalEntry {
        seq: entry.seq,
        attempt: entry.attempt.0,
        time: Some(stamp_to_proto(entry.time)),
        entry: entry.content,
    }
}

pub(super) fn stamp_to_proto(stamp: Stamp) -> prost_types::Timestamp {
    const SECOND: i64 = 1_000_000;
    let micros = i32::try_from(stamp.0.rem_euclid(SECOND)).unwrap_or_default();
    prost_types::Timestamp {
        seconds: stamp.0.div_euclid(SECOND),
        nanos: micros * 1000,
    }
}

/// An instant of the wire; none when it is malformed or out of the range of a store.
pub(super) fn stamp_from_proto(stamp: &prost_types::Timestamp) -> Option<Stamp> {
    let nanos = u32::try_from(stamp.nanos)
        .ok()
        .filter(|it| *it < 1_000_000_000)?;
    let micros = stamp.seconds.checked_mul(1_000_000)?;
    Some(Stamp(micros.checked_add(i64::from(nanos / 1000))?))
}

pub(super) fn duration_to_proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

/// A duration of the wire; none when it is negative or malformed.
pub(super) fn duration_from_proto(duration: &prost_types::Duration) -> Option<Duration> {
    let nanos = u32::try_from(duration.nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(duration.seconds).ok()?, nanos))
}

pub(super) fn error_to_proto(failure: &Failure) -> relay::Error {
    relay::Error {
        code: code_to_proto(failure.code).into(),
        r#type: failure.kind.clone(),
        message: failure.message.clone(),
        retryable: failure.retryable,
        retry_after: failure.retry_after.map(duration_to_proto),
        details: failure.details.clone().map(payload_to_proto),
        cause: failure
            .cause
            .as_deref()
            .map(|cause| Box::new(error_to_proto(cause))),
        run_id: failure.run.map(|run| run.to_string()).unwrap_or_default(),
        attempt: failure.attempt.0,
        truncated: failure.truncated,
    }
}

/// A worker's error. It may set four codes; any other becomes AGENT_ERROR. Cut to its limit.
pub(super) fn error_from_worker(error: relay::Error) -> Failure {
    let mut failure = error_level(error, CAUSES_TAKEN);
    let details = failure
        .details
        .as_ref()
        .map_or(0, |details| details.data.len());
    if error_to_proto(&failure).encoded_len() > ERROR_BYTES && details > 0 {
        failure.details = None;
        failure.truncated = true;
    }
    failure
}

fn error_level(error: relay::Error, levels: usize) -> Failure {
    let code = match relay::ErrorCode::try_from(error.code) {
        Ok(relay::ErrorCode::InvalidRequest) => Code::InvalidRequest,
        Ok(relay::ErrorCode::JournalMismatch) => Code::JournalMismatch,
        Ok(relay::ErrorCode::BudgetExceeded) => Code::BudgetExceeded,
        _ => Code::AgentError,
    };
    let (kind, kind_cut) = cut(error.r#type, TYPE_BYTES);
    let (mut message, message_cut) = cut(error.message, MESSAGE_BYTES);
    if message.is_empty() {
        message.push_str("the agent answered with an error without a message");
    }
    let outermost = levels == CAUSES_TAKEN;
    let too_deep = levels == 0 && error.cause.is_some();
    let details_cut = error.details.is_some() && !outermost;
    Failure {
        code,
        kind,
        message,
        retryable: error.retryable && code == Code::AgentError,
        retry_after: error.retry_after.as_ref().and_then(duration_from_proto),
        details: error.details.filter(|_| outermost).map(payload_from_proto),
        cause: error
            .cause
            .filter(|_| levels > 0)
            .map(|cause| Box::new(error_level(*cause, levels - 1))),
        run: None,
        attempt: Attempt::default(),
        truncated: error.truncated || kind_cut || message_cut || too_deep || details_cut,
    }
}

/// The beginning of a text, and whether that is not all of it.
fn cut(mut text: String, bytes_max: usize) -> (String, bool) {
    let whole = text.len();
    text.truncate(beginning(&text, bytes_max).len());
    let was_cut = text.len() < whole;
    (text, was_cut)
}

pub(super) fn code_to_proto(code: Code) -> relay::ErrorCode {
    match code {
        Code::InvalidRequest => relay::ErrorCode::InvalidRequest,
        Code::UnknownAgent => relay::ErrorCode::UnknownAgent,
        Code::RunNotFound => relay::ErrorCode::RunNotFound,
        Code::Busy => relay::ErrorCode::Busy,
        Code::RateLimited => relay::ErrorCode::RateLimited,
        Code::PayloadTooLarge => relay::ErrorCode::PayloadTooLarge,
        Code::JournalFull => relay::ErrorCode::JournalFull,
        Code::DeadlineExceeded => relay::ErrorCode::DeadlineExceeded,
        Code::AttemptTimeout => relay::ErrorCode::AttemptTimeout,
        Code::Cancelled => relay::ErrorCode::Cancelled,
        Code::AgentError => relay::ErrorCode::AgentError,
        Code::InvalidReply => relay::ErrorCode::InvalidReply,
        Code::ProtocolViolation => relay::ErrorCode::ProtocolViolation,
        Code::WorkerLost => relay::ErrorCode::WorkerLost,
        Code::Poisoned => relay::ErrorCode::Poisoned,
        Code::BudgetExceeded => relay::ErrorCode::BudgetExceeded,
        Code::JournalMismatch => relay::ErrorCode::JournalMismatch,
        Code::UnsupportedProtocol => relay::ErrorCode::UnsupportedProtocol,
        Code::CrashLoop => relay::ErrorCode::CrashLoop,
        Code::StoreUnavailable => relay::ErrorCode::StoreUnavailable,
        Code::ShuttingDown => relay::ErrorCode::ShuttingDown,
        Code::IdempotencyConflict => relay::ErrorCode::IdempotencyConflict,
        Code::Unauthenticated => relay::ErrorCode::Unauthenticated,
        Code::PermissionDenied => relay::ErrorCode::PermissionDenied,
        Code::Unimplemented => relay::ErrorCode::Unimplemented,
        Code::Internal => relay::ErrorCode::Internal,
    }
}
