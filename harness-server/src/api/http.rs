//! Plain HTTP on the same port: asking with curl, and how the harness is.
//!
//! `POST /v1/agents/{agent}/ask` goes the same path as `Ask`; with `?stream` its entries come as
//! server-sent events. Errors are the same codes, as JSON, with a mapped HTTP status.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use tonic::Code as GrpcCode;

use harness_proto::relay;

use crate::envelope::{Code, Failure, JSON, Payload};
use crate::pool::State as PoolState;
use crate::supervisor;

use super::admission::{Admission, Ask, Call};
use super::{convert, events, metrics, status, streams};

const WHAT_THIS_IS: &str = "This is a Harness server: it speaks gRPC (harness.v1) over HTTP/2 on \
this port.\nAsk with the `harness` command, an SDK, any gRPC client, or plain HTTP:\n\n  \
curl -d '\"hello\"' http://HOST:PORT/v1/agents/AGENT/ask?timeout=2s\n\n\
GET /healthz, /readyz and /metrics say how it is.\n";

/// Names the run of an answer.
const RUN_ID: HeaderName = HeaderName::from_static("harness-run-id");

/// The routes; `body_bytes` is the largest body taken.
pub(super) fn routes(admission: Admission, pools: supervisor::Handle, body_bytes: usize) -> Router {
    let metrics = {
        let (engine, pools) = (admission.engine().clone(), pools.clone());
        move || metrics::answer(engine.clone(), pools.clone())
    };
    let ready = {
        let admission = admission.clone();
        move || ready(admission.clone(), pools.clone())
    };
    Router::new()
        .route("/", get(|| async { WHAT_THIS_IS }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/agents/{agent}/ask", post(ask))
        .fallback(|| async { (StatusCode::NOT_FOUND, WHAT_THIS_IS) })
        .layer(axum::extract::DefaultBodyLimit::max(body_bytes))
        .with_state(admission)
}

/// Whether the harness takes work. A pool that has given up is named, and changes nothing for the
/// others.
async fn ready(admission: Admission, pools: supervisor::Handle) -> (StatusCode, String) {
    if admission.engine().is_leaving() {
        return (StatusCode::SERVICE_UNAVAILABLE, "leaving\n".to_owned());
    }
    let mut text = "ready\n".to_owned();
    for view in pools.list().await {
        if view.pool.state == PoolState::CrashLooping {
            text.push_str(&format!("pool {} is crash-looping\n", view.agent));
        }
    }
    (StatusCode::OK, text)
}

/// What may stand behind the question mark.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// How long the run may take, such as `2s` or `1m 30s`.
    timeout: Option<String>,
    /// Answer with server-sent events.
    stream: Option<String>,
    /// Wait for an agent nobody has offered yet.
    wait: Option<String>,
    /// The namespace to ask in.
    namespace: Option<String>,
    /// -100 to 100; higher goes first.
    priority: Option<i32>,
}

async fn ask(
    State(admission): State<Admission>,
    Path(agent): Path<String>,
    options: Result<Query<Options>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    let asked = asked(agent, options, &headers, body);
    let (ask, stream) = match asked {
        Ok(asked) => asked,
        Err(failure) => return failed(&failure),
    };
    let call = Call {
        timeout: None,
        ..Call::of(&headers, &axum::http::Extensions::new())
    };
    match admission.admit(ask, call) {
        Err(failure) => failed(&failure),
        Ok(mut admitted) => {
            let engine = admission.engine();
            if stream {
                let hung_up = admission.watch_hang_up();
                admitted.placing.paced = true;
                let (asked, watch) =
                    engine.ask_watched(admitted.request, admitted.terms, admitted.placing);
                let run_id = asked.run().to_string();
                let answers = streams::ask(engine.clone(), asked, watch, hung_up);
                return streamed(&run_id, answers);
            }
            let asked = engine.ask(admitted.request, admitted.terms, admitted.placing);
            let run_id = asked.run().to_string();
            let answer = asked.answer().await;
            let response = match answer.outcome {
                Ok(value) => replied(value),
                Err(failure) => failed(&failure),
            };
            named(&run_id, response)
        }
    }
}

/// The ask that a request makes, and whether its answer is to be streamed.
fn asked(
    agent: String,
    options: Result<Query<Options>, axum::extract::rejection::QueryRejection>,
    headers: &HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<(Ask, bool), Box<Failure>> {
    let refused = |message: String| Box::new(Failure::new(Code::InvalidRequest, message));
    let Query(options) = options.map_err(|rejection| {
        refused(format!(
            "{}; known are timeout, stream, wait, namespace and priority",
            rejection.body_text()
        ))
    })?;
    let data = body.map_err(|rejection| {
        let code = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
            _ => Code::InvalidRequest,
        };
        Box::new(Failure::new(code, rejection.body_text()))
    })?;
    let timeout = match options.timeout.as_deref().map(humantime::parse_duration) {
        None => None,
        Some(Ok(timeout)) => Some(convert::duration_to_proto(timeout)),
        Some(Err(error)) => {
            return Err(refused(format!(
                "timeout: {error}; write it like 2s or 1m 30s"
            )));
        }
    };
    let content_type = content_type(headers);
    let payload = Payload { content_type, data };
    if payload.is_json()
        && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&payload.data)
    {
        return Err(refused(format!(
            "the body is not JSON: {error}; a text is sent in quotes, or with another Content-Type"
        )));
    }
    let ask = Ask {
        agent,
        payload: Some(convert::payload_to_proto(payload)),
        options: Some(relay::RunOptions {
            timeout,
            namespace: options.namespace.unwrap_or_default(),
            priority: options.priority.unwrap_or_default(),
            wait_for_agent: is_on(options.wait.as_deref()),
            ..relay::RunOptions::default()
        }),
    };
    Ok((ask, is_on(options.stream.as_deref())))
}

/// The media type of a body. What curl sends when told nothing is taken for JSON.
fn content_type(headers: &HeaderMap) -> String {
    let sent = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    match sent {
        None | Some("application/x-www-form-urlencoded") => String::new(),
        Some(sent) => sent.to_owned(),
    }
}

fn is_on(flag: Option<&str>) -> bool {
    flag.is_some_and(|value| value != "false" && value != "0")
}

fn replied(value: Payload) -> Response {
    let media_type = match value.content_type.as_str() {
        "" => HeaderValue::from_static(JSON),
        other => HeaderValue::from_str(other)
            .unwrap_or(HeaderValue::from_static("application/octet-stream")),
    };
    ([(header::CONTENT_TYPE, media_type)], value.data).into_response()
}

/// A failure as JSON.
pub(super) fn failed(failure: &Failure) -> Response {
    let body = json!({ "error": events::error_to_json(failure) });
    let mut response = (
        http_status(failure.code),
        [(header::CONTENT_TYPE, JSON)],
        body.to_string() + "\n",
    )
        .into_response();
    if let Some(wait) = failure.retry_after {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn streamed(run_id: &str, answers: streams::Answers<relay::AskStreamResponse>) -> Response {
    use futures_util::StreamExt;
    let events = answers.map(|answer| Ok::<_, Infallible>(events::to_sse(answer)));
    let response = (
        [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        Body::from_stream(events),
    )
        .into_response();
    named(run_id, response)
}

fn named(run_id: &str, mut response: Response) -> Response {
    if let Ok(value) = HeaderValue::from_str(run_id) {
        response.headers_mut().insert(RUN_ID, value);
    }
    response
}

/// The HTTP status of an error code, by its gRPC status.
fn http_status(code: Code) -> StatusCode {
    if code == Code::PayloadTooLarge {
        return StatusCode::PAYLOAD_TOO_LARGE;
    }
    match status::grpc_code(code) {
        GrpcCode::InvalidArgument | GrpcCode::FailedPrecondition | GrpcCode::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        GrpcCode::Unauthenticated => StatusCode::UNAUTHORIZED,
        GrpcCode::PermissionDenied => StatusCode::FORBIDDEN,
        GrpcCode::NotFound => StatusCode::NOT_FOUND,
        GrpcCode::Aborted | GrpcCode::AlreadyExists => StatusCode::CONFLICT,
        GrpcCode::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        // The client closed its request; no standard status says so.
        GrpcCode::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        GrpcCode::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        GrpcCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        GrpcCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        GrpcCode::Ok | GrpcCode::Unknown | GrpcCode::Internal | GrpcCode::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
