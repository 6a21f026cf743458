//! What a gRPC status says.
//!
//! Owns the reading of status details: `harness.v1.Error` for callers, ErrorInfo and RetryInfo for
//! workers. Makes no status.

use std::error::Error as StdError;
use std::sync::Arc;

use harness_proto::v1;
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::{StatusExt as _, pb};

use super::{duration_in, payload_in};
use crate::connect::{Address, connection_broke, silent_at, unreachable_at};
use crate::error::{Error, ErrorKind, Parts, Remote};
use crate::session::{End, EndCode};

/// The domain of the harness's own ErrorInfo.
const DOMAIN: &str = "harness.v1";
const ERROR_MESSAGE: &str = "harness.v1.Error";

/// The end of an Attach call.
pub(crate) fn end(status: &Status) -> End {
    let reason = status
        .get_details_error_info()
        .filter(|info| info.domain == DOMAIN)
        .map(|info| info.reason);
    End {
        code: end_code(status.code()),
        reason,
        message: describe(status),
        retry_after: status
            .get_details_retry_info()
            .and_then(|info| info.retry_delay),
        broken: connection_broke(status.source()),
    }
}

/// The end of a call the harness closed without a status of its own.
pub(crate) fn closed() -> End {
    End {
        code: EndCode::Ok,
        reason: None,
        message: "the harness ended the call".to_owned(),
        retry_after: None,
        broken: false,
    }
}

fn end_code(code: Code) -> EndCode {
    match code {
        Code::Ok => EndCode::Ok,
        Code::Cancelled => EndCode::Cancelled,
        Code::DeadlineExceeded => EndCode::DeadlineExceeded,
        Code::Aborted => EndCode::Aborted,
        Code::Unavailable => EndCode::Unavailable,
        Code::Unauthenticated => EndCode::Unauthenticated,
        Code::PermissionDenied => EndCode::PermissionDenied,
        Code::FailedPrecondition => EndCode::FailedPrecondition,
        Code::InvalidArgument => EndCode::InvalidArgument,
        Code::Unimplemented => EndCode::Unimplemented,
        Code::ResourceExhausted => EndCode::ResourceExhausted,
        Code::Unknown
        | Code::NotFound
        | Code::AlreadyExists
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => EndCode::Other,
    }
}

/// The message with what caused it: a transport's own message is often just "transport error".
fn describe(status: &Status) -> String {
    let mut text = match status.message() {
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    };
    let mut next = status.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Why a worker gives up.
pub(crate) fn refusal(end: End) -> Error {
    let kind = match end.code {
        EndCode::Unauthenticated => ErrorKind::Unauthenticated,
        EndCode::PermissionDenied => ErrorKind::PermissionDenied,
        EndCode::Unimplemented => ErrorKind::Unimplemented,
        EndCode::FailedPrecondition if end.reason.as_deref() == Some("UNSUPPORTED_PROTOCOL") => {
            ErrorKind::UnsupportedProtocol
        }
        EndCode::FailedPrecondition | EndCode::InvalidArgument => ErrorKind::InvalidWorker,
        EndCode::Ok
        | EndCode::Cancelled
        | EndCode::DeadlineExceeded
        | EndCode::Aborted
        | EndCode::Unavailable
        | EndCode::ResourceExhausted
        | EndCode::Other => ErrorKind::Transport,
    };
    Error::new(
        kind,
        format!("the harness refuses this worker: {}", end.message),
    )
}

/// Why a call of a caller's failed. `heard` says whether anything ever came over the connection.
pub(crate) fn caller_error(address: &Address, heard: bool, status: Status) -> Error {
    if let Some(told) = told_error(&status) {
        return error_in(told, kind_of(status.code()));
    }
    if in_chain::<ConnectError>(&status) {
        return unreachable_at(address, status.source());
    }
    if !heard {
        return silent_at(address);
    }
    let kind = if in_chain::<TimeoutExpired>(&status)
        || (status.code() == Code::Cancelled && status.message() == TIMEOUT_EXPIRED)
    {
        // tonic calls an elapsed deadline CANCELLED, on both sides.
        ErrorKind::DeadlineExceeded
    } else if status.source().is_some() {
        // Only what was made on this side has a source: the connection's own failure.
        ErrorKind::Transport
    } else {
        kind_of(status.code())
    };
    let message = match kind {
        ErrorKind::DeadlineExceeded => "the deadline passed before the harness answered".to_owned(),
        _ if status.message().is_empty() => status.code().description().to_owned(),
        _ => status.message().to_owned(),
    };
    let retry_after = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay);
    let retryable = kind == ErrorKind::Transport && status.code() == Code::Unavailable;
    let error = Error::new(kind, message).with_retry(retryable, retry_after);
    match Remote::chain(status.source()) {
        Some(source) if source.message != error.message() => error.with_source(source),
        Some(_) | None => error,
    }
}

/// The message of tonic's `TimeoutExpired`, which a tonic server sends as a plain status.
const TIMEOUT_EXPIRED: &str = "Timeout expired";

fn in_chain<T: StdError + 'static>(status: &Status) -> bool {
    let mut next = status.source();
    while let Some(cause) = next {
        if cause.is::<T>() {
            return true;
        }
        next = cause.source();
    }
    false
}

/// The `harness.v1.Error` among the details.
fn told_error(status: &Status) -> Option<v1::Error> {
    let details = pb::Status::decode(status.details()).ok()?;
    let is_ours = |any: &&Any| any.type_url.rsplit('/').next() == Some(ERROR_MESSAGE);
    let any = details.details.iter().find(is_ours)?;
    v1::Error::decode(any.value.as_slice()).ok()
}

/// An error that came with no status.
pub(crate) fn error_of(told: v1::Error) -> Error {
    error_in(told, ErrorKind::Internal)
}

/// An error as the harness told it. A code this SDK does not know counts by its gRPC status.
fn error_in(told: v1::Error, by_status: ErrorKind) -> Error {
    let known = v1::ErrorCode::try_from(told.code).ok().and_then(kind_in);
    let source = told
        .cause
        .map(|cause| Arc::new(remote(*cause)) as Arc<dyn StdError + Send + Sync>);
    Error::from_parts(Parts {
        kind: known.unwrap_or(by_status),
        unknown_code: if known.is_none() {
            Some(told.code)
        } else {
            None
        },
        message: told.message,
        agent_type: told.r#type,
        retryable: told.retryable && known.is_some(),
        retry_after: told.retry_after.map(duration_in),
        details: told.details.map(payload_in),
        run_id: told.run_id,
        attempt: told.attempt,
        truncated: told.truncated,
        source,
    })
}

fn remote(error: v1::Error) -> Remote {
    let message = match error.r#type.as_str() {
        "" => error.message,
        error_type => format!("{error_type}: {}", error.message),
    };
    Remote {
        message,
        cause: error.cause.map(|cause| Box::new(remote(*cause))),
    }
}

fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::Cancelled => ErrorKind::Cancelled,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::InvalidArgument => ErrorKind::InvalidRequest,
        Code::NotFound => ErrorKind::UnknownAgent,
        Code::AlreadyExists => ErrorKind::IdempotencyConflict,
        Code::PermissionDenied => ErrorKind::PermissionDenied,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        // The transport's own limit of a decoded message.
        Code::OutOfRange => ErrorKind::PayloadTooLarge,
        Code::ResourceExhausted => ErrorKind::Busy,
        Code::Unimplemented => ErrorKind::Unimplemented,
        Code::Aborted => ErrorKind::WorkerLost,
        // The harness's own INTERNAL has an Error in its details.
        Code::Ok
        | Code::Unknown
        | Code::FailedPrecondition
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => ErrorKind::Transport,
    }
}

pub(crate) fn kind_in(code: v1::ErrorCode) -> Option<ErrorKind> {
    use v1::ErrorCode as Wire;
    Some(match code {
        Wire::Unspecified => return None,
        Wire::InvalidRequest => ErrorKind::InvalidRequest,
        Wire::UnknownAgent => ErrorKind::UnknownAgent,
        Wire::RunNotFound => ErrorKind::RunNotFound,
        Wire::Busy => ErrorKind::Busy,
        Wire::RateLimited => ErrorKind::RateLimited,
        Wire::PayloadTooLarge => ErrorKind::PayloadTooLarge,
        Wire::JournalFull => ErrorKind::JournalFull,
        Wire::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Wire::AttemptTimeout => ErrorKind::AttemptTimeout,
        Wire::Cancelled => ErrorKind::Cancelled,
        Wire::AgentError => ErrorKind::AgentError,
        Wire::InvalidReply => ErrorKind::InvalidReply,
        Wire::ProtocolViolation => ErrorKind::ProtocolViolation,
        Wire::WorkerLost => ErrorKind::WorkerLost,
        Wire::Poisoned => ErrorKind::Poisoned,
        Wire::BudgetExceeded => ErrorKind::BudgetExceeded,
        Wire::JournalMismatch => ErrorKind::JournalMismatch,
        Wire::UnsupportedProtocol => ErrorKind::UnsupportedProtocol,
        Wire::CrashLoop => ErrorKind::CrashLoop,
        Wire::StoreUnavailable => ErrorKind::StoreUnavailable,
        Wire::ShuttingDown => ErrorKind::ShuttingDown,
        Wire::IdempotencyConflict => ErrorKind::IdempotencyConflict,
        Wire::Unauthenticated => ErrorKind::Unauthenticated,
        Wire::PermissionDenied => ErrorKind::PermissionDenied,
        Wire::Unimplemented => ErrorKind::Unimplemented,
        Wire::Internal => ErrorKind::Internal,
    })
}
