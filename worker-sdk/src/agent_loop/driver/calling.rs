//! Calling the model: the one place where a call is made again.
//!
//! Owns the work of the step `model`: tries and waits within the run's deadline. What an error
//! means was judged before.

use std::time::Duration;

use tracing::Instrument as _;

use super::Run;
use crate::agent::AgentError;
use crate::agent_loop::failure::{Failure, ModelError};
use crate::agent_loop::machine::{Machine, ModelCall, ModelFailed};
use crate::agent_loop::pieces::Pieces;
use crate::agent_loop::record::ModelRecord;
use crate::agent_loop::request::Request;
use crate::agent_loop::response::Response;
use crate::agent_loop::telemetry;
use crate::error::Error;
use crate::journal;
use crate::retry::Backoff;

impl Run<'_> {
    /// The request of a call, from what the journal holds.
    pub(super) fn request(&self, machine: &Machine, call: &ModelCall) -> Request {
        let parts = self.parts;
        Request {
            turn: call.turn,
            system: parts.system.clone(),
            messages: machine.messages(),
            tools: parts.toolbox.specs().clone(),
            tool_choice: parts.tool_choice.clone(),
            max_output_tokens: call.max_output_tokens,
            thinking: parts.rules.budget.thinking,
            temperature: parts.temperature,
            stream: parts.stream,
            input_tokens: call.input_tokens,
            input_tokens_max: call.input_tokens_max,
        }
    }

    /// Calls the model until it has answered or will not.
    pub(super) async fn model_work(&self, request: Request) -> Result<ModelRecord, AgentError> {
        telemetry::turn_start(self.ctx.run_id(), request.turn, request.input_tokens);
        let retry = &self.parts.retry;
        let mut backoff = Backoff::full_jitter(retry.initial, retry.max);
        let mut tries = 0;
        loop {
            tries += 1;
            let (tried, is_committed) = self.try_model(&request).await;
            let error = match tried {
                Ok(response) => return self.answered(&request, response).await,
                Err(error) => error,
            };
            let told = self.parts.redactor.text(&error.told()).into_owned();
            let wait = backoff.next_wait(error.retry_after());
            let is_last = tries > retry.retries || is_committed || !error.may_pass();
            let again = !is_last && !self.is_too_long(wait, error.retry_after());
            let (run_id, turn) = (self.ctx.run_id(), request.turn);
            telemetry::model_error(run_id, turn, tries, &error, &told, again.then_some(wait));
            if error.failure() == Failure::ContextLength {
                return Ok(ModelRecord::TooLong { message: told });
            }
            if !again {
                return Err(agent_error(&error, told));
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// One try, and whether something of its answer has gone to the caller.
    async fn try_model(&self, request: &Request) -> (Result<Response, ModelError>, bool) {
        let model = &self.parts.model;
        let span = telemetry::chat(
            &self.span,
            model.provider(),
            model.model(),
            request.max_output_tokens,
        );
        let (result, is_committed) = self.complete(request).instrument(span.clone()).await;
        match &result {
            Ok(response) => telemetry::answered(&span, response),
            Err(error) => {
                span.record("error.type", error.failure().error_type());
            }
        }
        (result, is_committed)
    }

    /// Calls the model, and passes on what it says meanwhile. All of that has gone out in the end.
    async fn complete(&self, request: &Request) -> (Result<Response, ModelError>, bool) {
        let model = &self.parts.model;
        if !self.parts.stream {
            let mut ignored = Pieces::ignored();
            return (model.complete(request, &mut ignored).await, false);
        }
        let (mut pieces, outgoing) = Pieces::outgoing(self.ctx.entry_bytes_max());
        let completing = async {
            let result = model.complete(request, &mut pieces).await;
            outgoing.end();
            Ok((result, pieces.is_committed()))
        };
        let passing = outgoing.pass_on(self.ctx, request.turn);
        match tokio::try_join!(completing, passing) {
            Ok((completed, ())) => completed,
            Err(error) => (Err(error), true),
        }
    }

    /// Whether a wait is over what the settings or the deadline allow.
    fn is_too_long(&self, wait: Duration, asked: Option<Duration>) -> bool {
        asked.is_some_and(|asked| asked > self.parts.retry.cap) || wait >= self.ctx.time_left()
    }

    async fn answered(
        &self,
        request: &Request,
        response: Response,
    ) -> Result<ModelRecord, AgentError> {
        telemetry::response(self.ctx.run_id(), request.turn, &response);
        self.ctx.usage(self.usage(&response)).await?;
        Ok(ModelRecord::Answered {
            response: Box::new(response),
            prompt: self.prompt.clone(),
        })
    }

    fn usage(&self, response: &Response) -> journal::Usage {
        let used = &response.usage;
        let prices = self.parts.rules.prices.as_ref();
        journal::Usage {
            input_tokens: used.input_tokens.unwrap_or(0),
            cached_tokens: used.cached_tokens.unwrap_or(0),
            output_tokens: used.output_tokens.unwrap_or(0),
            reasoning_tokens: used.reasoning_tokens.unwrap_or(0),
            model: response.answered_by.clone(),
            cost_micros: prices.map_or(0, |prices| prices.cost_micros(used)),
            currency: prices.map_or_else(String::new, |prices| prices.currency.clone()),
        }
    }
}

/// The failure as the result of the step: recorded, and tried again by the next attempt if it may
/// pass. Its causes stand in its text, where no secret is; the record has nothing else of them.
fn agent_error(error: &ModelError, told: String) -> AgentError {
    let kind = error.failure().error_type();
    let may_pass = error.may_pass();
    let wait = error.retry_after();
    let mut answer = AgentError::new(kind, told);
    if may_pass {
        answer = answer.retryable();
    }
    match wait {
        Some(wait) => answer.retry_after(wait),
        None => answer,
    }
}

pub(super) fn failed(error: &AgentError) -> ModelFailed {
    ModelFailed {
        error_type: error.error_type().to_owned(),
        message: error.message().to_owned(),
        may_pass: error.is_retryable(),
        retry_after_ms: error
            .least_wait()
            .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// An answer that no entry of the journal holds is none: nothing may rest on it.
pub(super) fn not_recorded(error: &Error) -> ModelFailed {
    ModelFailed {
        error_type: "AnswerTooLarge".to_owned(),
        message: format!(
            "the model's answer is too large for the journal: {}; let it write less \
             (max_output_tokens), or raise the harness's limit entry_bytes",
            error.message()
        ),
        may_pass: false,
        retry_after_ms: None,
    }
}
