//! `RunService`: what applications ask. Checks what a caller may send, then the engine has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use harness_proto::relay;
use harness_proto::relay::run_service_server::RunService;

use crate::config::Limits;
use crate::engine::Engine;
use crate::envelope::{self, Caller, Code, Failure, Payload, Trace};
use crate::ids::{AgentKey, is_valid_name};
use crate::run::Terms;

use super::hang_ups::HangUps;
use super::status::{of_failure, refused};
use super::{convert, deadline};

/// Initial metadata that names the run.
const RUN_ID_HEADER: &str = "harness-run-id";

/// Attempts of an ask that count.
const ASK_ATTEMPTS: u32 = 1;

/// Longest agent name an error repeats, in bytes.
const NAME_BYTES: usize = 256;

/// A stream of an rpc that is not served.
type Unserved<T> = tokio_stream::Empty<Result<T, Status>>;

/// The service.
pub(super) struct Runs {
    engine: Engine,
    hang_ups: Arc<HangUps>,
}

impl Runs {
    pub(super) fn new(engine: Engine) -> Self {
        let limits = engine.limits();
        let hang_ups = Arc::new(HangUps::new(
            limits.hang_ups_per_second,
            limits.hang_ups_burst,
            Instant::now(),
        ));
        Self { engine, hang_ups }
    }

    /// Checks an ask against the limits.
    fn admit(
        &self,
        ask: relay::AskRequest,
        call: &MetadataMap,
    ) -> Result<(envelope::Request, Terms, bool), Box<Failure>> {
        let now = Instant::now();
        if let Some(wait) = self.hang_ups.wait(now) {
            let message = "too many calls were hung up on: wait for answers, or set a timeout";
            return Err(Box::new(
                Failure::new(Code::RateLimited, message).retry_after(wait),
            ));
        }
        let limits = self.engine.limits();
        let options = ask.options.unwrap_or_default();
        refuse_unserved(&options)?;
        check_names(&ask.agent, &options)?;
        check_metadata(&options.metadata, limits)?;
        let payload = match ask.payload {
            Some(payload) => convert::payload_from_proto(payload),
            None => Payload {
                content_type: String::new(),
                data: Bytes::from_static(b"null"),
            },
        };
        let (bytes, limit) = (payload.data.len() as u64, limits.payload_bytes.as_u64());
        if bytes > limit {
            let message = format!("the request has {bytes} bytes, the limit is {limit}: send less");
            return Err(Box::new(Failure::new(Code::PayloadTooLarge, message)));
        }
        let timeout = timeout(options.timeout.as_ref(), limits)?;
        let agent = AgentKey::new(&options.namespace, &ask.agent);
        let terms = Terms {
            deadline: now + deadline::within(timeout, deadline::of_call(call)),
            max_attempts: ASK_ATTEMPTS,
            uncounted_max: limits.uncounted_deliveries,
        };
        let request = envelope::Request {
            payload,
            metadata: options.metadata,
            caller: Caller {
                subject: "anonymous".into(),
                namespace: agent.namespace.clone(),
            },
            agent,
            trace: options
                .trace
                .map(convert::trace_from_proto)
                .or_else(|| trace_of(call)),
        };
        Ok((request, terms, options.wait_for_agent))
    }
}

#[tonic::async_trait]
impl RunService for Runs {
    type AskStreamStream = Unserved<relay::AskStreamResponse>;
    type AskManyStream = Unserved<relay::AskManyResponse>;
    type WatchRunStream = Unserved<relay::WatchRunResponse>;

    async fn ask(
        &self,
        request: Request<relay::AskRequest>,
    ) -> Result<Response<relay::AskResponse>, Status> {
        let (metadata, _, ask) = request.into_parts();
        let (request, terms, wait_for_agent) = self
            .admit(ask, &metadata)
            .map_err(|failure| of_failure(&failure))?;
        let hung_up = CountHangUp {
            hang_ups: self.hang_ups.clone(),
            answered: false,
        };
        let asked = self.engine.ask(request, terms, wait_for_agent);
        let run_id = asked.run().to_string();
        let answer = asked.answer().await;
        hung_up.answered();

        let header = run_id.parse().expect("a UUID must be valid metadata");
        match answer.outcome {
            Ok(value) => {
                let mut response = Response::new(relay::AskResponse {
                    run_id,
                    payload: Some(convert::payload_to_proto(value)),
                    attempt: answer.attempt.0,
                });
                response.metadata_mut().insert(RUN_ID_HEADER, header);
                Ok(response)
            }
            Err(failure) => {
                let mut status = of_failure(&failure);
                status.metadata_mut().insert(RUN_ID_HEADER, header);
                Err(status)
            }
        }
    }

    async fn ask_stream(
        &self,
        _: Request<relay::AskStreamRequest>,
    ) -> Result<Response<Self::AskStreamStream>, Status> {
        Err(unserved("AskStream"))
    }

    async fn ask_many(
        &self,
        _: Request<Streaming<relay::AskManyRequest>>,
    ) -> Result<Response<Self::AskManyStream>, Status> {
        Err(unserved("AskMany"))
    }

    async fn start_run(
        &self,
        _: Request<relay::StartRunRequest>,
    ) -> Result<Response<relay::StartRunResponse>, Status> {
        Err(unserved("StartRun"))
    }

    async fn get_run(
        &self,
        _: Request<relay::GetRunRequest>,
    ) -> Result<Response<relay::GetRunResponse>, Status> {
        Err(unserved("GetRun"))
    }

    async fn list_runs(
        &self,
        _: Request<relay::ListRunsRequest>,
    ) -> Result<Response<relay::ListRunsResponse>, Status> {
        Err(unserved("ListRuns"))
    }

    async fn cancel_run(
        &self,
        _: Request<relay::CancelRunRequest>,
    ) -> Result<Response<relay::CancelRunResponse>, Status> {
        Err(unserved("CancelRun"))
    }

    async fn watch_run(
        &self,
        _: Request<relay::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        Err(unserved("WatchRun"))
    }
}

/// Counts a hang-up when the handler is dropped before the answer.
struct CountHangUp {
    hang_ups: Arc<HangUps>,
    answered: bool,
}

impl CountHangUp {
    fn answered(mut self) {
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

pub(super) fn unserved(rpc: &str) -> Status {
    refused(
        Code::Unimplemented,
        format!("this harness does not serve {rpc} yet"),
    )
}

/// Names an option this server does not serve, rather than ignoring it.
fn refuse_unserved(options: &relay::RunOptions) -> Result<(), Box<Failure>> {
    let field = if !options.selector.is_empty() {
        "options.selector"
    } else if options.priority != 0 {
        "options.priority"
    } else if options.retry_policy.is_some() {
        "options.retry_policy"
    } else if options.parent.is_some() {
        "options.parent"
    } else {
        return Ok(());
    };
    let message = format!("this harness does not serve {field} yet: leave it out");
    Err(Box::new(Failure::new(Code::Unimplemented, message)))
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
    limits: &Limits,
) -> Result<Duration, Box<Failure>> {
    let Some(asked) = asked else {
        return Ok(limits.default_timeout);
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

fn trace_of(call: &MetadataMap) -> Option<Trace> {
    let text = |key| {
        call.get(key)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    Some(Trace {
        parent: text("traceparent")?,
        state: text("tracestate").unwrap_or_default(),
    })
}
