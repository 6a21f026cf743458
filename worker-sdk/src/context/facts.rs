//! What comes with a request.
//!
//! Owns plain data; nothing of it changes while the request is worked on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::payload::Payload;
use crate::session::Delivery;

/// What came with the request.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) run_id: String,
    pub(crate) attempt: u32,
    pub(crate) deadline: Instant,
    pub(crate) durable: bool,
    pub(crate) entry_bytes_max: u64,
    pub(crate) metadata: HashMap<String, String>,
    pub(crate) caller: Caller,
    pub(crate) depth: u32,
    pub(crate) trace: Trace,
    pub(crate) idempotency_key: String,
}

impl Facts {
    /// Takes a delivery apart. The limit is that of the call it came on.
    pub(crate) fn of(now: Instant, delivery: Delivery, entry_bytes_max: u64) -> (Self, Payload) {
        let facts = Self {
            run_id: delivery.lease.held.run_id,
            attempt: delivery.lease.held.attempt,
            deadline: deadline_in(now, delivery.time_left),
            durable: delivery.durable,
            entry_bytes_max,
            metadata: delivery.metadata,
            caller: Caller {
                subject: delivery.caller_subject,
                namespace: delivery.namespace,
            },
            depth: delivery.depth,
            trace: Trace {
                traceparent: delivery.traceparent,
                tracestate: delivery.tracestate,
            },
            idempotency_key: delivery.idempotency_key,
        };
        (facts, delivery.payload)
    }
}

/// A time as far away as a clock can count is as good as none: 30 years stand for it.
pub(crate) fn deadline_in(now: Instant, time_left: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
    now.checked_add(time_left).unwrap_or(now + FAR)
}

/// Who asked, as the harness established it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// The principal; `anonymous` where the harness asks for no credential.
    pub subject: String,
    /// The namespace of the run.
    pub namespace: String,
}

/// A W3C trace context, passed on unread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// The `traceparent` header value, empty when the caller traced nothing.
    pub traceparent: String,
    /// The `tracestate` header value, may be empty.
    pub tracestate: String,
}

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LogLevel {
    /// For the agent's author.
    Debug,
    /// For whoever runs it.
    Info,
    /// Something to look at.
    Warn,
    /// Something that failed.
    Error,
}
