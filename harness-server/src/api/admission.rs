//! What a caller may ask: every way to ask, gRPC or HTTP, one or many, is checked here and becomes
//! the same request, terms and placing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName};

use harness_proto::relay;

use crate::config::Limits;
use crate::dispatch::Placing;
use crate::engine::Engine;
use crate::envelope::{self, Caller, Code, Failure, Payload, Trace};
use crate::ids::{AgentKey, Delivery, is_valid_name};
use crate::retry::{ATTEMPTS_MAX, Policy};
use crate::run::Terms;

use super::convert::{CONTENT_TYPE_BYTES, TYPE_BYTES};
use super::hang_ups::HangUps;
use super::router::Arrival;
use super::turns::Turns;
use super::{convert, deadline};

/// Attempts of an ask that says nothing of retries.
const ASK_ATTEMPTS: u32 = 1;

/// Attempts of a durable run that says nothing of retries.
pub(super) const START_ATTEMPTS: u32 = 3;

/// Longest agent name an error repeats, in bytes.
const NAME_BYTES: usize = 256;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest parts of a trace context, in bytes; W3C asks for 55 and at least 512.
const TRACEPARENT_BYTES: usize = 128;
const TRACESTATE_BYTES: usize = 512;

/// Priorities a caller may give.
const PRIORITIES: std::ops::RangeInclusive<i32> = -100..=100;

/// Longest key or value of a label, in bytes.
const LABEL_BYTES: usize = 1024;

/// Types of errors that a policy may name.
const TYPES_MAX: usize = 64;

/// The longest back-off a policy may name.
const BACKOFF_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// An ask as it comes, however it comes.
pub(super) struct Ask {
    pub(super) agent: String,
    pub(super) payload: Option<relay::Payload>,
    pub(super) options: Option<relay::RunOptions>,
}

/// What the call that carries an ask says of it.
#[derive(Clone)]
pub(super) struct Call {
    /// What is left until the call's own deadline.
    pub(super) timeout: Option<Duration>,
    /// The trace context of its metadata.
    pub(super) trace: Option<Trace>,
    /// Who makes it.
    pub(super) subject: Arc<str>,
}

/// An ask that may be made.
pub(super) struct Admitted {
    pub(super) request: envelope::Request,
    pub(super) terms: Terms,
    pub(super) placing: Placing,
}

/// The one gate of all asks; cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    engine: Engine,
    hang_ups: Arc<HangUps>,
    turns: Arc<Turns>,
    once: Arc<Policy>,
    thrice: Arc<Policy>,
}

/// What is asked for: an answer, or a durable run that begins after so long.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Answer,
    Run(Duration),
}

impl Call {
    pub(super) fn of(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let text = |key: &HeaderName, bytes_max| {
            let value = headers.get(key)?.to_str().ok()?;
            (value.len() <= bytes_max).then(|| value.to_owned())
        };
        let trace = text(&TRACEPARENT, TRACEPARENT_BYTES).map(|parent| Trace {
            parent,
            state: text(&TRACESTATE, TRACESTATE_BYTES).unwrap_or_default(),
        });
        Self {
            timeout: Arrival::time_left(extensions),
            trace,
            subject: Arrival::principal(extensions).subject(),
        }
    }
}

impl Admission {
    pub(super) fn new(engine: Engine) -> Self {
        let limits = engine.limits();
        let hang_ups = HangUps::new(
            limits.hang_ups_per_second,
            limits.hang_ups_burst,
            Instant::now(),
        );
        Self {
            engine,
            hang_ups: Arc::new(hang_ups),
            turns: Arc::default(),
            once: Arc::new(Policy::attempts(ASK_ATTEMPTS)),
            thrice: Arc::new(Policy::attempts(START_ATTEMPTS)),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Counts a hang-up unless the ask is answered before what comes back is dropped.
    pub(super) fn watch_hang_up(&self) -> CountHangUp {
        CountHangUp {
            hang_ups: self.hang_ups.clone(),
            answered: false,
        }
    }

    /// Waits until an ask may be made.
    pub(super) async fn turn(&self) {
        self.turns.join().await;
    }

    /// Checks an ask against the limits.
    pub(super) fn admit(&self, ask: Ask, call: Call) -> Result<Admitted, Box<Failure>> {
        self.admit_as(Wanted::Answer, ask, call)
    }

    /// Checks what is asked for against the limits.
    pub(super) fn admit_as(
        &self,
        wanted: Wanted,
        ask: Ask,
        call: Call,
    ) -> Result<Admitted, Box<Failure>> {
        let now = Instant::now();
        if let Some(wait) = self.hang_ups.wait(now) {
            let message = "too many calls were hung up on: wait for answers, or set a timeout";
            return Err(Box::new(
                Failure::new(Code::RateLimited, message).retry_after(wait),
            ));
        }
        let limits = self.engine.limits();
        let options = ask.options.unwrap_or_default();
        check_names(&ask.agent, &options)?;
        check_metadata(&options.metadata, limits)?;
        check_trace(options.trace.as_ref())?;
        let payload = checked_payload(ask.payload, limits)?;
        let agent = AgentKey::new(&options.namespace, &ask.agent);
        let (default, attempts, unsaid) = match wanted {
            Wanted::Answer => (limits.default_timeout, ASK_ATTEMPTS, &self.once),
            Wanted::Run(_) => (limits.durable_timeout, START_ATTEMPTS, &self.thrice),
        };
        let timeout = timeout(options.timeout.as_ref(), default, limits)?;
        let terms = Terms {
            deadline: match wanted {
                Wanted::Answer => now + deadline::within(timeout, call.timeout),
                // The run outlives the call that starts it.
                Wanted::Run(begins_in) => now + begins_in + timeout,
            },
            retry: match &options.retry_policy {
                Some(policy) => Arc::new(policy_from_proto(policy, attempts)?),
                None => unsaid.clone(),
            },
            uncounted_max: limits.uncounted_deliveries,
            poison_max: limits.poison,
        };
        let placing = placing(&options, limits)?;
        let request = envelope::Request {
            payload,
            metadata: options.metadata,
            caller: Caller {
                subject: call.subject,
                namespace: agent.namespace.clone(),
            },
            agent,
            trace: options
                .trace
                .filter(|trace| !trace.traceparent.is_empty())
                .map(convert::trace_from_proto)
                .or(call.trace),
            parent: options.parent.as_ref().map(parent).transpose()?,
            depth: 0,
            durable: None,
        };
        Ok(Admitted {
            request,
            terms,
            placing,
        })
    }
}

/// Counts a hang-up when it is dropped before the answer.
pub(super) struct CountHangUp {
    hang_ups: Arc<HangUps>,
    answered: bool,
}

impl CountHangUp {
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for CountHangUp {
    fn drop(&mut self) {
        if !self.answered {
            self.hang_ups.count(Instant::now());
        }
    }
}

pub(super) fn refused(message: impl Into<String>) -> Box<Failure> {
    Box::new(Failure::new(Code::InvalidRequest, message))
}

fn checked_payload(
    payload: Option<relay::Payload>,
    limits: &Limits,
) -> Result<Payload, Box<Failure>> {
    let payload = match payload {
        Some(payload) => convert::payload_from_proto(payload),
        None => Payload {
            content_type: String::new(),
            data: Bytes::from_static(b"null"),
        },
    };
    if payload.content_type.len() as u64 > CONTENT_TYPE_BYTES {
        return Err(refused(format!(
            "payload.content_type has more than {CONTENT_TYPE_BYTES} bytes"
        )));
    }
    let (bytes, limit) = (payload.data.len() as u64, limits.payload_bytes.as_u64());
    if bytes > limit {
        let message = format!("the request has {bytes} bytes, the limit is {limit}: send less");
        return Err(Box::new(Failure::new(Code::PayloadTooLarge, message)));
    }
    Ok(payload)
}

fn check_trace(trace: Option<&relay::TraceContext>) -> Result<(), Box<Failure>> {
    let fits = trace.is_none_or(|trace| {
        trace.traceparent.len() <= TRACEPARENT_BYTES && trace.tracestate.len() <= TRACESTATE_BYTES
    });
    fits.then_some(()).ok_or_else(|| {
        refused(format!(
            "options.trace: traceparent has at most {TRACEPARENT_BYTES} bytes, tracestate \
             {TRACESTATE_BYTES}"
        ))
    })
}

fn placing(options: &relay::RunOptions, limits: &Limits) -> Result<Placing, Box<Failure>> {
    if !PRIORITIES.contains(&options.priority) {
        return Err(refused(format!(
            "options.priority is {}, it must be -100 to 100",
            options.priority
        )));
    }
    check_labels("options.selector", &options.selector, limits)?;
    Ok(Placing {
        selector: options.selector.clone().into_iter().collect(),
        priority: options.priority,
        wait_for_agent: options.wait_for_agent,
        paced: false,
    })
}

/// Checks labels, or what labels are to be.
pub(super) fn check_labels(
    field: &str,
    labels: &HashMap<String, String>,
    limits: &Limits,
) -> Result<(), Box<Failure>> {
    if labels.len() > limits.labels {
        return Err(refused(format!(
            "{field} has {} pairs, the limit is {}",
            labels.len(),
            limits.labels
        )));
    }
    let longest = |(key, value): (&String, &String)| key.len().max(value.len());
    if labels.iter().map(longest).any(|bytes| bytes > LABEL_BYTES) {
        return Err(refused(format!(
            "{field} has a key or a value of more than {LABEL_BYTES} bytes"
        )));
    }
    Ok(())
}

pub(super) fn policy_from_proto(
    policy: &relay::RetryPolicy,
    attempts: u32,
) -> Result<Policy, Box<Failure>> {
    let defaults = Policy::attempts(match policy.max_attempts {
        0 => attempts,
        attempts if attempts <= ATTEMPTS_MAX => attempts,
        attempts => {
            return Err(refused(format!(
                "options.retry_policy.max_attempts is {attempts}, it must be at most \
                 {ATTEMPTS_MAX}"
            )));
        }
    });
    let duration = |field: &str, value: &Option<prost_types::Duration>| match value {
        None => Ok(None),
        Some(value) => convert::duration_from_proto(value)
            .filter(|value| !value.is_zero() && *value <= BACKOFF_MAX)
            .map(Some)
            .ok_or_else(|| {
                refused(format!(
                    "options.retry_policy.{field} must be more than 0 and at most 24 h"
                ))
            }),
    };
    let multiplier = match policy.multiplier {
        0.0 => defaults.multiplier,
        multiplier if (1.0..=100.0).contains(&multiplier) => multiplier,
        multiplier => {
            return Err(refused(format!(
                "options.retry_policy.multiplier is {multiplier}, it must be 1 to 100"
            )));
        }
    };
    let types = &policy.non_retryable_types;
    if types.len() > TYPES_MAX || types.iter().any(|kind| kind.len() > TYPE_BYTES) {
        return Err(refused(format!(
            "options.retry_policy.non_retryable_types may have {TYPES_MAX} types of {TYPE_BYTES} \
             bytes"
        )));
    }
    Ok(Policy {
        attempt_timeout: duration("attempt_timeout", &policy.attempt_timeout)?,
        initial_backoff: duration("initial_backoff", &policy.initial_backoff)?
            .unwrap_or(defaults.initial_backoff),
        max_backoff: duration("max_backoff", &policy.max_backoff)?.unwrap_or(defaults.max_backoff),
        multiplier,
        non_retryable_types: policy.non_retryable_types.clone(),
        ..defaults
    })
}

fn parent(parent: &relay::AttemptRef) -> Result<Delivery, Box<Failure>> {
    convert::delivery_from_proto(parent)
        .ok_or_else(|| refused("options.parent.run_id must be the UUID of the run that asks"))
}

fn check_names(agent: &str, options: &relay::RunOptions) -> Result<(), Box<Failure>> {
    if agent.is_empty() {
        return Err(Box::new(Failure::new(
            Code::InvalidRequest,
            "agent is empty: name the agent to ask",
        )));
    }
    let unnameable = agent.len() > NAME_BYTES || (options.wait_for_agent && !is_valid_name(agent));
    if unnameable {
        return Err(Box::new(Failure::new(
            Code::InvalidRequest,
            "no agent can have this name: it must match [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
        )));
    }
    if !options.namespace.is_empty() && !is_valid_name(&options.namespace) {
        return Err(Box::new(Failure::new(
            Code::InvalidRequest,
            "options.namespace must be empty or match [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
        )));
    }
    Ok(())
}

fn check_metadata(metadata: &HashMap<String, String>, limits: &Limits) -> Result<(), Box<Failure>> {
    let bytes: usize = metadata
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let message = if metadata.len() > limits.metadata_keys {
        format!(
            "metadata has {} keys, the limit is {}",
            metadata.len(),
            limits.metadata_keys
        )
    } else if bytes as u64 > limits.metadata_bytes.as_u64() {
        format!(
            "metadata has {bytes} bytes, the limit is {}",
            limits.metadata_bytes.as_u64()
        )
    } else if let Some(key) = metadata.keys().find(|key| key.starts_with("harness-")) {
        format!("metadata key \"{key}\": keys that start with \"harness-\" are the harness's own")
    } else {
        return Ok(());
    };
    Err(Box::new(Failure::new(Code::InvalidRequest, message)))
}

fn timeout(
    asked: Option<&prost_types::Duration>,
    default: Duration,
    limits: &Limits,
) -> Result<Duration, Box<Failure>> {
    let Some(asked) = asked else {
        return Ok(default);
    };
    match convert::duration_from_proto(asked) {
        Some(timeout) if !timeout.is_zero() && timeout <= limits.max_timeout => Ok(timeout),
        Some(_) | None => Err(Box::new(Failure::new(
            Code::InvalidRequest,
            format!(
                "options.timeout must be more than 0 and at most {} s",
                limits.max_timeout.as_secs()
            ),
        ))),
    }
}
