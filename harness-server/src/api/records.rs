//! What durable runs are on disk: entries and options as messages, and back.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use uuid::Uuid;

use harness_proto::relay;
use harness_proto::v1::{self, entry::Kind};

use crate::dispatch::{Placing, Said};
use crate::engine::{Recorded, Records};
use crate::envelope::{Caller, Outcome, Payload, Request};
use crate::retry::Policy;
use crate::store::Record;

use super::admission::{START_ATTEMPTS, policy_from_proto};
use super::{convert, entries};

/// The encoding of `harness.v1`.
pub struct WireRecords {
    /// The policy of nearly all runs.
    retry: Arc<Policy>,
}

impl Default for WireRecords {
    fn default() -> Self {
        Self {
            retry: Arc::new(Policy::attempts(START_ATTEMPTS)),
        }
    }
}

impl Records for WireRecords {
    fn entry(&self, server_id: Uuid, said: &Said) -> Bytes {
        let kind = match said {
            Said::Content(content) => return entries::encoded(server_id, content),
            Said::Asked(request) => Kind::RunStarted(v1::RunStarted {
                request: Some(payload(&request.payload)),
            }),
            Said::Ended(outcome) => Kind::RunEnded(v1::RunEnded {
                outcome: Some(ended(outcome)),
            }),
        };
        v1::Entry { kind: Some(kind) }.encode_to_vec().into()
    }

    fn options(&self, record: &Record) -> Recorded {
        let options = options(record);
        let request = request(record, &options, Payload::default());
        let frame_bytes = request.frame_bytes();
        // Checked when it was taken.
        let retry = options
            .retry_policy
            .as_ref()
            .and_then(|policy| policy_from_proto(policy, START_ATTEMPTS).ok())
            .map_or_else(|| self.retry.clone(), Arc::new);
        Recorded {
            request: request.header(),
            frame_bytes,
            retry,
            placing: Placing {
                selector: options.selector.into_iter().collect(),
                priority: record.run.priority,
                wait_for_agent: true,
                paced: false,
            },
        }
    }

    fn request(&self, record: &Record, run_started: &[u8]) -> Option<Request> {
        let entry = relay::Entry::decode(run_started).ok()?;
        let Some(relay::entry::Kind::RunStarted(started)) = entry.kind else {
            return None;
        };
        let payload = convert::payload_from_proto(started.request?);
        Some(request(record, &options(record), payload))
    }

    fn without_value(&self, run_ended: Bytes) -> Bytes {
        let entry = v1::Entry::decode(run_ended.clone()).ok();
        let Some(Kind::RunEnded(ended)) = entry.and_then(|entry| entry.kind) else {
            return run_ended;
        };
        let Some(v1::outcome::Outcome::Value(value)) = ended.outcome.and_then(|it| it.outcome)
        else {
            return run_ended;
        };
        let value = v1::Payload {
            content_type: value.content_type,
            data: Bytes::new(),
        };
        let outcome = Some(v1::Outcome {
            outcome: Some(v1::outcome::Outcome::Value(value)),
        });
        let kind = Some(Kind::RunEnded(v1::RunEnded { outcome }));
        v1::Entry { kind }.encode_to_vec().into()
    }

    fn is_replayed(&self, entry: &[u8]) -> bool {
        let entry = v1::Entry::decode(entry).ok();
        let kind = entry.and_then(|entry| entry.kind);
        matches!(kind, Some(Kind::Step(_) | Kind::Usage(_)))
    }
}

fn options(record: &Record) -> relay::RunOptions {
    relay::RunOptions::decode(record.run.options.clone()).unwrap_or_default()
}

fn request(record: &Record, options: &relay::RunOptions, payload: Payload) -> Request {
    let run = &record.run;
    Request {
        agent: run.agent.clone(),
        payload,
        metadata: match options.metadata.is_empty() {
            true => HashMap::new(),
            false => options.metadata.clone(),
        },
        caller: Caller {
            subject: run.caller.as_str().into(),
            namespace: run.agent.namespace.clone(),
        },
        trace: options.trace.clone().map(convert::trace_from_proto),
        parent: options
            .parent
            .as_ref()
            .and_then(convert::delivery_from_proto),
        depth: run.depth,
        durable: Some(run.key.as_str().into()),
    }
}

fn payload(payload: &Payload) -> v1::Payload {
    v1::Payload {
        content_type: payload.content_type.clone(),
        data: payload.data.clone(),
    }
}

fn ended(outcome: &Outcome) -> v1::Outcome {
    v1::Outcome {
        outcome: Some(match outcome {
            Ok(value) => v1::outcome::Outcome::Value(payload(value)),
            Err(failure) => v1::outcome::Outcome::Error(entries::error(failure)),
        }),
    }
}
