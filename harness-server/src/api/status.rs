//! Where every `tonic::Status` is made: of a failure, of the end of a call, of a refused hello.
//!
//! Each carries `harness.v1.Error` (failures), `google.rpc.ErrorInfo` with our domain, and
//! `google.rpc.RetryInfo` where asking again can help.

use std::time::Duration;

use prost::Message;
use tonic::{Code as GrpcCode, Status};
use tonic_types::pb;

use harness_proto::relay;

use crate::envelope::{Code, Failure, Retried, beginning};
use crate::slot::{End, Refusal};

use super::convert;

/// The domain of our ErrorInfo; what tells an end of ours from a broken connection.
pub(super) const DOMAIN: &str = "harness.v1";

/// Most bytes of an Error in status details: some clients refuse larger trailers.
const ERROR_BYTES: usize = 4 * 1024;

/// Most bytes of the details' largest part, the message.
const MESSAGE_BYTES: usize = 1024;

/// Most bytes of a status' own text, percent-encoded as the header it is.
const HEADER_BYTES: usize = 768;

/// Most levels of causes in status details.
const CAUSES: usize = 4;

/// The least back-off of a worker whose call was ended because the harness leaves.
const LEAVING_RETRY: Duration = Duration::from_millis(500);

/// The least back-off of a worker that met a limit.
const TOO_MANY_RETRY: Duration = Duration::from_secs(5);

/// The gRPC status of an error code.
#[must_use]
pub fn grpc_code(code: Code) -> GrpcCode {
    match code {
        Code::InvalidRequest => GrpcCode::InvalidArgument,
        Code::UnknownAgent | Code::RunNotFound => GrpcCode::NotFound,
        Code::Busy | Code::RateLimited | Code::PayloadTooLarge | Code::JournalFull => {
            GrpcCode::ResourceExhausted
        }
        Code::DeadlineExceeded | Code::AttemptTimeout => GrpcCode::DeadlineExceeded,
        Code::Cancelled => GrpcCode::Cancelled,
        Code::AgentError => GrpcCode::Unknown,
        Code::InvalidReply | Code::ProtocolViolation | Code::Internal => GrpcCode::Internal,
        Code::WorkerLost => GrpcCode::Aborted,
        Code::Poisoned
        | Code::BudgetExceeded
        | Code::JournalMismatch
        | Code::UnsupportedProtocol => GrpcCode::FailedPrecondition,
        Code::CrashLoop | Code::StoreUnavailable | Code::ShuttingDown => GrpcCode::Unavailable,
        Code::IdempotencyConflict => GrpcCode::AlreadyExists,
        Code::Unauthenticated => GrpcCode::Unauthenticated,
        Code::PermissionDenied => GrpcCode::PermissionDenied,
        Code::Unimplemented => GrpcCode::Unimplemented,
    }
}

/// The retry rule of an error code, in the words of the table in `proto/README.md`.
#[must_use]
pub fn retry_rule(code: Code) -> &'static str {
    match code.retried() {
        Retried::Yes => "yes",
        Retried::IfAgentSays => "if the agent says retryable",
        Retried::CallersBusiness => "caller's business",
        Retried::Never => "never",
    }
}

/// The status of a failure.
pub(super) fn of_failure(failure: &Failure) -> Status {
    let error = bounded(convert::error_to_proto(failure));
    let mut details = vec![
        any("type.googleapis.com/harness.v1.Error", &error),
        error_info(
            convert::code_to_proto(failure.code)
                .as_str_name()
                .trim_start_matches("ERROR_CODE_"),
        ),
    ];
    if let Some(wait) = failure.retry_after {
        details.push(retry_info(wait));
    }
    status(grpc_code(failure.code), &error.message, details)
}

/// The status of a failure that never became a run, by code and text.
pub(super) fn refused(code: Code, message: impl Into<String>) -> Status {
    of_failure(&Failure::new(code, message))
}

/// The status that ends an Attach call; none for an end that is OK.
pub(super) fn of_end(end: &End) -> Option<Status> {
    let (code, reason, message) = match end {
        End::Closed | End::Idle => return None,
        End::DeadlineExceeded(held) => (
            GrpcCode::DeadlineExceeded,
            "DEADLINE_EXCEEDED",
            format!("the deadline of {held} passed: stop the work, then say released"),
        ),
        End::Cancelled(held) => (
            GrpcCode::Cancelled,
            "CANCELLED",
            format!("{held} was cancelled: stop the work, then say released"),
        ),
        End::NotAccepted(held) => (
            GrpcCode::Aborted,
            "NOT_ACCEPTED",
            format!("no frame named {held} in time: a full level worker sends a heartbeat at once"),
        ),
        End::HeartbeatsMissed => (
            GrpcCode::Unavailable,
            "HEARTBEATS_MISSED",
            "three heartbeats were missed".to_owned(),
        ),
        End::Leaving => (
            GrpcCode::Unavailable,
            "LEAVING",
            "the harness is shutting down: connect again with back-off".to_owned(),
        ),
        End::StoreFailed => (
            GrpcCode::Unavailable,
            "STORE_UNAVAILABLE",
            "what was sent is not on disk yet: connect again with back-off and resume".to_owned(),
        ),
        End::Superseded(named) => (
            GrpcCode::Aborted,
            "SUPERSEDED",
            format!("{named} is over or has another call: stop the work, then say released"),
        ),
        End::WrongAttempt { named, holds } => {
            let holds = match holds {
                Some(held) => held.to_string(),
                None => "no request".to_owned(),
            };
            let message = format!("a frame named {named}, but this call holds {holds}");
            (GrpcCode::FailedPrecondition, "WRONG_ATTEMPT", message)
        }
        End::Broken(what) => (
            GrpcCode::InvalidArgument,
            "PROTOCOL_VIOLATION",
            what.clone(),
        ),
        End::Violation(violation) => (
            GrpcCode::InvalidArgument,
            "PROTOCOL_VIOLATION",
            violation.to_string(),
        ),
        End::FrameTooLarge { bytes, limit } => (
            GrpcCode::ResourceExhausted,
            "FRAME_TOO_LARGE",
            format!("a frame of {bytes} bytes came, the limit is {limit}"),
        ),
        End::Refused(refusal) => return Some(of_refusal(refusal)),
    };
    let mut details = vec![error_info(reason)];
    if code == GrpcCode::Unavailable {
        details.push(retry_info(LEAVING_RETRY));
    }
    Some(status(code, &message, details))
}

/// What makes the transport reset a stream; the peer sees the reset only.
pub(super) fn reset() -> Status {
    Status::cancelled("frames were unsent at the end of the call")
}

/// The status of a refused hello.
pub(super) fn of_refusal(refusal: &Refusal) -> Status {
    let (code, reason, message) = match refusal {
        Refusal::NoHello => (
            GrpcCode::DeadlineExceeded,
            "NO_HELLO",
            "no hello came in time: it is the first frame of an Attach call".to_owned(),
        ),
        Refusal::NotFirst => (
            GrpcCode::InvalidArgument,
            "INVALID_HELLO",
            "the first frame of an Attach call must be hello".to_owned(),
        ),
        Refusal::UnsupportedProtocol(version) => (
            GrpcCode::FailedPrecondition,
            "UNSUPPORTED_PROTOCOL",
            format!(
                "hello.protocol_version is {version}, this harness speaks 1: use an SDK of \
                 version 1, or a newer harness"
            ),
        ),
        Refusal::Invalid(message) => (GrpcCode::InvalidArgument, "INVALID_HELLO", message.clone()),
        Refusal::NotYours => (
            GrpcCode::Aborted,
            "NOT_YOURS",
            "this harness has nothing to resume for you: stop the work, then say released"
                .to_owned(),
        ),
        Refusal::TooLarge { bytes, limit } => (
            GrpcCode::ResourceExhausted,
            "FRAME_TOO_LARGE",
            format!("a hello of {bytes} bytes came, the limit is {limit}"),
        ),
        Refusal::Drained => (
            GrpcCode::FailedPrecondition,
            "DRAINED",
            "this worker was drained: its process may not come back, a new one may".to_owned(),
        ),
        Refusal::Denied(message) => (
            GrpcCode::PermissionDenied,
            "PERMISSION_DENIED",
            message.clone(),
        ),
        Refusal::TooMany(message) => (GrpcCode::ResourceExhausted, "TOO_MANY", message.clone()),
    };
    let mut details = vec![error_info(reason)];
    if matches!(refusal, Refusal::TooMany(_)) {
        details.push(retry_info(TOO_MANY_RETRY));
    }
    status(code, &message, details)
}

/// The status of a call whose request does not come.
pub(super) fn body_too_late() -> Status {
    refused(
        Code::DeadlineExceeded,
        "the request did not arrive in time: all of the time went into sending it",
    )
}

/// Makes a status. Its own text is short, because every client has a limit on all headers
/// together and this text travels twice; the Error in the details has the whole.
fn status(code: GrpcCode, message: &str, details: Vec<prost_types::Any>) -> Status {
    let message = short(message);
    let encoded = pb::Status {
        code: i32::from(code),
        message: message.to_owned(),
        details,
    }
    .encode_to_vec();
    Status::with_details(code, message, encoded.into())
}

/// Cuts an Error down to what fits into status details.
fn bounded(mut error: relay::Error) -> relay::Error {
    bound_levels(&mut error, CAUSES);
    if error.encoded_len() > ERROR_BYTES {
        error.truncated = true;
        error.details = None;
    }
    if error.encoded_len() > ERROR_BYTES {
        error.cause = None;
    }
    error
}

fn bound_levels(error: &mut relay::Error, levels: usize) {
    for (text, bytes_max) in [
        (&mut error.message, MESSAGE_BYTES),
        (&mut error.r#type, MESSAGE_BYTES / 4),
    ] {
        let kept = beginning(text, bytes_max).len();
        error.truncated |= kept < text.len();
        text.truncate(kept);
    }
    match &mut error.cause {
        Some(_) if levels == 0 => {
            error.cause = None;
            error.truncated = true;
        }
        Some(cause) => bound_levels(cause, levels - 1),
        None => {}
    }
}

/// The beginning of a text that keeps to its limit when it is percent-encoded into a header.
fn short(text: &str) -> &str {
    let mut encoded = 0;
    let end = text.char_indices().find(|(_, letter)| {
        encoded += match letter {
            ' '..='~' if *letter != '%' => 1,
            other => 3 * other.len_utf8(),
        };
        encoded > HEADER_BYTES
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn error_info(reason: &str) -> prost_types::Any {
    let info = pb::ErrorInfo {
        reason: reason.to_owned(),
        domain: DOMAIN.to_owned(),
        metadata: std::collections::HashMap::new(),
    };
    any("type.googleapis.com/google.rpc.ErrorInfo", &info)
}

fn retry_info(wait: Duration) -> prost_types::Any {
    let info = pb::RetryInfo {
        retry_delay: Some(convert::duration_to_proto(wait)),
    };
    any("type.googleapis.com/google.rpc.RetryInfo", &info)
}

fn any(type_url: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any {
        type_url: type_url.to_owned(),
        value: message.encode_to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_status_details_keeps_to_its_limit() {
        let mut failure = Failure::new(Code::AgentError, "ä".repeat(4000));
        failure.kind = "T".repeat(4000);
        failure.details = Some(crate::envelope::Payload {
            data: vec![0; 9000].into(),
            ..Default::default()
        });
        for level in 0..9 {
            failure = Failure {
                cause: Some(Box::new(failure)),
                ..Failure::new(Code::AgentError, format!("{level}{}", "x".repeat(2000)))
            };
        }
        let status = of_failure(&failure);
        let whole = pb::Status::decode(status.details()).expect("a status");
        let error = relay::Error::decode(&*whole.details[0].value).expect("an error");
        assert!(whole.details[0].value.len() <= ERROR_BYTES);
        assert!(error.truncated);
    }

    #[test]
    fn all_headers_of_the_worst_error_keep_to_what_clients_take() {
        for letter in ["x", "ä", "漢", "😀", "%"] {
            let mut failure = Failure::new(Code::AgentError, letter.repeat(4000));
            failure.details = Some(crate::envelope::Payload {
                data: vec![b'x'; 2900].into(),
                ..Default::default()
            });
            failure.retry_after = Some(Duration::from_secs(1));
            let headers = of_failure(&failure)
                .into_http::<()>()
                .into_parts()
                .0
                .headers;
            let bytes: usize = headers
                .iter()
                .map(|(k, v)| k.as_str().len() + v.len() + 32)
                .sum();
            assert!(bytes < 8192, "{letter}: {bytes}");
        }
    }

    #[test]
    fn every_end_that_is_not_ok_names_our_domain_and_a_reason() {
        let status = of_end(&End::Leaving).expect("not OK");
        let whole = pb::Status::decode(status.details()).expect("a status");
        let info = pb::ErrorInfo::decode(&*whole.details[0].value).expect("error info");
        assert_eq!(
            (info.domain.as_str(), info.reason.as_str()),
            (DOMAIN, "LEAVING")
        );
        assert!(
            whole
                .details
                .iter()
                .any(|any| any.type_url.ends_with("RetryInfo"))
        );
        assert!(of_end(&End::Closed).is_none() && of_end(&End::Idle).is_none());
    }
}
