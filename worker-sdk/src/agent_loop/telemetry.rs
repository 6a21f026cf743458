//! What an operator sees of a run: one event for each thing that happens, and spans.
//!
//! Owns the names, which are those of OpenTelemetry's conventions for generative AI where there is
//! one. Parents of spans are passed on explicitly. No answer of a model and no argument that is
//! secret is in any of them.

use std::time::Duration;

use tracing::{Span, info, info_span, warn};

use super::failure::ModelError;
use super::machine::{Abort, Used};
use super::response::{Response, Usage};

/// The run. Its id is that of the trace.
pub(super) fn invoke_agent(run_id: &str, provider: &str, model: &str) -> Span {
    let trace_id: String = run_id.chars().filter(char::is_ascii_hexdigit).collect();
    info_span!(
        "invoke_agent",
        otel.name = "invoke_agent",
        gen_ai.operation.name = "invoke_agent",
        gen_ai.provider.name = provider,
        gen_ai.request.model = model,
        run_id,
        trace_id,
    )
}

/// A model call.
pub(super) fn chat(parent: &Span, provider: &str, model: &str, max_tokens: u32) -> Span {
    info_span!(
        parent: parent,
        "chat",
        otel.name = format!("chat {model}"),
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = provider,
        gen_ai.request.model = model,
        gen_ai.request.max_tokens = max_tokens,
        gen_ai.response.id = tracing::field::Empty,
        gen_ai.response.model = tracing::field::Empty,
        gen_ai.response.finish_reasons = tracing::field::Empty,
        gen_ai.usage.input_tokens = tracing::field::Empty,
        gen_ai.usage.output_tokens = tracing::field::Empty,
        error.r#type = tracing::field::Empty,
    )
}

/// What is known of a model call when it is answered.
pub(super) fn answered(span: &Span, response: &Response) {
    span.record("gen_ai.response.id", response.id.as_str());
    span.record("gen_ai.response.model", response.answered_by.as_str());
    span.record(
        "gen_ai.response.finish_reasons",
        response.finish_raw.as_str(),
    );
    used(span, &response.usage);
}

/// What is known of a model call when it has failed.
pub(super) fn not_answered(span: &Span, error: &ModelError) {
    span.record("error.type", error.failure().error_type());
    if let Some(usage) = error.usage() {
        used(span, usage);
    }
}

fn used(span: &Span, usage: &Usage) {
    if let Some(tokens) = usage.input_tokens {
        span.record("gen_ai.usage.input_tokens", tokens);
    }
    if let Some(tokens) = usage.output_tokens {
        span.record("gen_ai.usage.output_tokens", tokens);
    }
}

/// A tool call.
pub(super) fn execute_tool(parent: &Span, tool: &str, call_id: &str) -> Span {
    info_span!(
        parent: parent,
        "execute_tool",
        otel.name = format!("execute_tool {tool}"),
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool,
        gen_ai.tool.call.id = call_id,
        gen_ai.tool.type = "function",
    )
}

pub(super) fn turn_start(run_id: &str, turn: u32, input_tokens: u64) {
    info!(run_id, turn, input_tokens, "turn_start");
}

pub(super) fn response(run_id: &str, turn: u32, response: &Response) {
    info!(
        run_id,
        turn,
        response_id = response.id,
        finish = response.finish_raw,
        "response"
    );
}

/// A try of a model call failed. `wait` is how long until the next; None when there is none.
pub(super) fn model_error(
    run_id: &str,
    turn: u32,
    attempt: u32,
    error: &ModelError,
    told: &str,
    wait: Option<Duration>,
) {
    warn!(
        run_id,
        turn,
        attempt,
        error_type = error.failure().error_type(),
        status = error.status(),
        error = told,
        retry_in_ms = wait.map(millis),
        "model_error"
    );
}

/// The hooks let a call run. `by` is who said so, as far as they tell.
pub(super) fn tool_allowed(tool: &str, call_id: &str, by: Option<&str>, latency: Duration) {
    let latency_ms = millis(latency);
    info!(tool, call_id, by, latency_ms, "tool_allowed");
}

pub(super) fn tool_dispatch(tool: &str, call_id: &str, args: &str, attempt: u32) {
    info!(tool, call_id, args, attempt, "tool_dispatch");
}

pub(super) fn tool_result(tool: &str, call_id: &str, latency: Duration, status: &'static str) {
    let latency_ms = millis(latency);
    info!(tool, call_id, latency_ms, status, "tool_result");
}

/// A try of a tool's check failed. `wait` is how long until the next; None when there is none, and
/// the outcome of the call is unknown.
pub(super) fn check_failed(
    tool: &str,
    call_id: &str,
    attempt: u32,
    error: &str,
    wait: Option<Duration>,
) {
    warn!(
        tool,
        call_id,
        attempt,
        error,
        retry_in_ms = wait.map(millis),
        "check_failed"
    );
}

pub(super) fn abort(reason: &Abort, turn: u32) {
    info!(%reason, turn, "abort");
}

pub(super) fn final_answer(run_id: &str, total_turns: u32, used: Used, wall_time: Duration) {
    let total_tokens = used.tokens();
    let wall_time_ms = millis(wall_time);
    info!(
        run_id,
        total_turns, total_tokens, wall_time_ms, "final_answer"
    );
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
