//! What a worker writes into a journal, to and from the one format of wire and disk.
//!
//! Owns conversions only. Entries that only the harness writes are nothing here.

use harness_proto::v1;
use prost::Message as _;
use v1::entry::Kind;

use super::{duration_in, duration_out, payload_in, payload_out};
use crate::agent::{ErrorCode, ErrorParts};
use crate::context::LogLevel;
use crate::error::{Error, ErrorKind};
use crate::journal::{Entry, Outcome, Recorded, Step, Usage};

#[cfg(feature = "local-journal")]
pub(crate) use harness_proto::JOURNAL_SQL;

/// The most an encoded entry may have where nobody says another limit.
pub(crate) const ENTRY_BYTES_MAX: u64 = 1 << 20;

/// What a journal stores.
pub(crate) fn to_bytes(entry: &Entry) -> Vec<u8> {
    entry_out(entry.clone()).encode_to_vec()
}

pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Entry> {
    entry_in(v1::Entry::decode(bytes).ok()?)
}

/// The encoded size of an entry, what the limits count.
pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    // The payload's bytes are shared, so the clone is cheap.
    entry_out(entry.clone()).encoded_len() as u64
}

/// Whether an entry is small enough.
pub(crate) fn within(entry: &Entry, bytes_max: u64) -> Result<(), Error> {
    match entry_bytes(entry) {
        bytes if bytes > bytes_max => Err(too_large(bytes, bytes_max)),
        _ => Ok(()),
    }
}

/// An entry that no journal takes.
pub(crate) fn too_large(entry_bytes: u64, limit: u64) -> Error {
    let message = format!("the entry has {entry_bytes} bytes and may have {limit}");
    Error::new(ErrorKind::PayloadTooLarge, message)
}

pub(super) fn recorded(entry: v1::JournalEntry) -> Option<Recorded> {
    let content = entry_in(entry.entry?)?;
    Some(Recorded::new(entry.seq, entry.attempt, content))
}

pub(super) fn entry_out(entry: Entry) -> v1::Entry {
    let kind = match entry {
        Entry::Output(payload) => Kind::Output(v1::Output {
            payload: Some(payload_out(payload)),
        }),
        Entry::Progress { fraction, message } => Kind::Progress(v1::Progress { fraction, message }),
        Entry::Log { level, message } => {
            let level = match level {
                LogLevel::Debug => v1::LogLevel::Debug,
                LogLevel::Info => v1::LogLevel::Info,
                LogLevel::Warn => v1::LogLevel::Warn,
                LogLevel::Error => v1::LogLevel::Error,
            };
            Kind::Log(v1::Log {
                level: level.into(),
                message,
            })
        }
        Entry::Step(step) => Kind::Step(step_out(*step)),
        Entry::Usage(usage) => Kind::Usage(usage_out(*usage)),
    };
    v1::Entry { kind: Some(kind) }
}

fn entry_in(entry: v1::Entry) -> Option<Entry> {
    Some(match entry.kind? {
        Kind::Output(output) => Entry::Output(payload_in(output.payload.unwrap_or_default())),
        Kind::Progress(progress) => Entry::Progress {
            fraction: progress.fraction,
            message: progress.message,
        },
        Kind::Log(log) => Entry::Log {
            level: match log.level() {
                v1::LogLevel::Debug => LogLevel::Debug,
                v1::LogLevel::Unspecified | v1::LogLevel::Info => LogLevel::Info,
                v1::LogLevel::Warn => LogLevel::Warn,
                v1::LogLevel::Error => LogLevel::Error,
            },
            message: log.message,
        },
        Kind::Step(step) => Entry::Step(Box::new(step_in(step)?)),
        Kind::Usage(usage) => Entry::Usage(Box::new(usage_in(usage))),
        Kind::RunStarted(_)
        | Kind::AttemptStarted(_)
        | Kind::AttemptEnded(_)
        | Kind::CancelRequested(_)
        | Kind::RunEnded(_)
        | Kind::AttemptStopping(_)
        | Kind::AttemptStopped(_) => return None,
    })
}

fn step_out(step: Step) -> v1::Step {
    let kind = match step.outcome {
        None => v1::StepKind::Started,
        Some(_) => v1::StepKind::Done,
    };
    let outcome = step.outcome.map(|outcome| v1::Outcome {
        outcome: Some(match outcome {
            Ok(value) => v1::outcome::Outcome::Value(payload_out(value)),
            Err(error) => v1::outcome::Outcome::Error(error_out(*error)),
        }),
    });
    v1::Step {
        name: step.name,
        key: step.key,
        kind: kind.into(),
        outcome,
        idempotency_key: step.idempotency_key,
    }
}

/// A step of a kind this SDK does not know proves nothing; one that is done has an outcome.
fn step_in(step: v1::Step) -> Option<Step> {
    let outcome: Option<Outcome> = match step.kind() {
        v1::StepKind::Unspecified => return None,
        v1::StepKind::Started => None,
        v1::StepKind::Done => Some(match step.outcome?.outcome? {
            v1::outcome::Outcome::Value(value) => Ok(payload_in(value)),
            v1::outcome::Outcome::Error(error) => Err(Box::new(error_in(error))),
        }),
    };
    Some(Step {
        name: step.name,
        key: step.key,
        idempotency_key: step.idempotency_key,
        outcome,
    })
}

fn usage_out(usage: Usage) -> v1::Usage {
    v1::Usage {
        input_tokens: usage.input_tokens,
        cached_tokens: usage.cached_tokens,
        output_tokens: usage.output_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        model: usage.model,
        cost_micros: usage.cost_micros,
        currency: usage.currency,
    }
}

fn usage_in(usage: v1::Usage) -> Usage {
    Usage {
        input_tokens: usage.input_tokens,
        cached_tokens: usage.cached_tokens,
        output_tokens: usage.output_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        model: usage.model,
        cost_micros: usage.cost_micros,
        currency: usage.currency,
    }
}

pub(super) fn error_out(error: ErrorParts) -> v1::Error {
    let cause = error.causes.into_iter().rev().fold(None, |cause, message| {
        Some(Box::new(v1::Error {
            message,
            cause,
            ..Default::default()
        }))
    });
    let code = match error.code {
        ErrorCode::Agent => v1::ErrorCode::AgentError,
        ErrorCode::InvalidRequest => v1::ErrorCode::InvalidRequest,
        ErrorCode::JournalMismatch => v1::ErrorCode::JournalMismatch,
    };
    v1::Error {
        code: code.into(),
        r#type: error.error_type,
        message: error.message,
        retryable: error.retryable,
        retry_after: error.retry_after.map(duration_out),
        details: error.details.map(payload_out),
        cause,
        run_id: String::new(),
        attempt: 0,
        truncated: error.truncated,
    }
}

/// An error that a worker recorded.
fn error_in(error: v1::Error) -> ErrorParts {
    let code = match error.code() {
        v1::ErrorCode::InvalidRequest => ErrorCode::InvalidRequest,
        v1::ErrorCode::JournalMismatch => ErrorCode::JournalMismatch,
        // What a worker may not set is the agent's own error.
        _ => ErrorCode::Agent,
    };
    let mut causes = Vec::new();
    let mut next = error.cause;
    while let Some(cause) = next {
        causes.push(cause.message);
        next = cause.cause;
    }
    ErrorParts {
        code,
        error_type: error.r#type,
        message: error.message,
        retryable: error.retryable,
        retry_after: error.retry_after.map(duration_in),
        details: error.details.map(payload_in),
        causes,
        truncated: error.truncated,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::agent::AgentError;
    use crate::payload::Payload;

    fn step(outcome: Option<Outcome>) -> Entry {
        Entry::Step(Box::new(Step {
            name: "charge".to_owned(),
            key: "order-7".to_owned(),
            idempotency_key: "run/charge/order-7".to_owned(),
            outcome,
        }))
    }

    #[test]
    fn every_entry_comes_back_from_its_bytes() {
        let error = AgentError::new("RateLimited", "slow down")
            .retryable()
            .retry_after(Duration::from_millis(1500))
            .details(&7)
            .cause(std::io::Error::other("socket"));
        let usage = Usage {
            input_tokens: 5,
            cached_tokens: 4,
            output_tokens: 3,
            reasoning_tokens: 2,
            model: "m".to_owned(),
            cost_micros: 1,
            currency: "USD".to_owned(),
        };
        for entry in [
            Entry::Output(Payload::text("piece")),
            Entry::Progress {
                fraction: 0.5,
                message: "half".to_owned(),
            },
            Entry::Log {
                level: LogLevel::Error,
                message: "line".to_owned(),
            },
            step(None),
            step(Some(Ok(Payload::json(&[1, 2]).unwrap()))),
            step(Some(Err(Box::new(error.into_parts())))),
            Entry::Usage(Box::new(usage)),
        ] {
            let bytes = to_bytes(&entry);
            assert_eq!(bytes.len() as u64, entry_bytes(&entry));
            assert_eq!(from_bytes(&bytes), Some(entry));
        }
    }

    #[test]
    fn what_no_worker_writes_and_what_proves_nothing_is_no_entry() {
        let ended = Kind::RunEnded(v1::RunEnded::default());
        let unknown = Kind::Step(v1::Step {
            kind: 9,
            ..Default::default()
        });
        let done_without_outcome = Kind::Step(v1::Step {
            kind: v1::StepKind::Done.into(),
            ..Default::default()
        });
        for kind in [Some(ended), Some(unknown), Some(done_without_outcome), None] {
            let bytes = v1::Entry { kind: kind.clone() }.encode_to_vec();
            assert_eq!(from_bytes(&bytes), None, "{kind:?}");
        }
        assert_eq!(from_bytes(&[0xff]), None);
    }
}
