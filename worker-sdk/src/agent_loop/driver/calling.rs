//! Calling the model: the one place where a call is made again.
//!
//! Owns the work of the step `model`: tries and waits within the run's deadline. What an error
//! means was judged before.

use std::time::Duration;

use tracing::Instrument as _;

use super::Run;
use crate::agent::AgentError;
use crate::agent_loop::failure::{Failure, ModelError};
use crate::agent_loop::machine::{Machine, ModelCall, ModelFailed, Used};
use crate::agent_loop::pieces::Pieces;
use crate::agent_loop::record::{FailedCall, ModelRecord};
use crate::agent_loop::request::Request;
use crate::agent_loop::response::{Response, Usage};
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

    /// Calls the model until it has answered or will not, or the run has used what it may.
    pub(super) async fn model_work(
        &self,
        machine: &Machine,
        request: Request,
    ) -> Result<ModelRecord, AgentError> {
        let lost = self.lost();
        if machine.is_spent_with(lost) {
            return Ok(ModelRecord::Spent { lost });
        }
        telemetry::turn_start(self.ctx.run_id(), request.turn, request.input_tokens);
        let (retry, model) = (&self.parts.retry, &self.parts.model);
        let mut backoff = Backoff::full_jitter(retry.initial, retry.max);
        let mut tries = 0;
        loop {
            tries += 1;
            let (tried, is_committed) = self.try_model(&request).await;
            let error = match tried {
                Ok(response) => return self.answered(&request, response).await,
                Err(error) => error,
            };
            if let Some(usage) = error.usage() {
                self.ctx.usage(self.usage(usage, model.model())).await?;
            }
            let lost = self.lost();
            let told = self.parts.redactor.text(&error.told()).into_owned();
            let wait = backoff.next_wait(error.retry_after());
            let is_last = tries > retry.retries
                || is_committed
                || !error.may_pass()
                || self.is_too_long(wait, error.retry_after());
            let again = !is_last && !machine.is_spent_with(lost);
            let (run_id, turn) = (self.ctx.run_id(), request.turn);
            telemetry::model_error(run_id, turn, tries, &error, &told, again.then_some(wait));
            if error.failure() == Failure::ContextLength {
                return Ok(ModelRecord::TooLong {
                    message: told,
                    lost,
                });
            }
            if is_last {
                return Err(agent_error(&error, told, lost));
            }
            if !again {
                return Ok(ModelRecord::Spent { lost });
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
            Err(error) => telemetry::not_answered(&span, error),
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
        let lost = self.lost();
        let usage = self.usage(&response.usage, &response.answered_by);
        self.ctx.usage(usage).await?;
        Ok(ModelRecord::Answered {
            response: Box::new(response),
            prompt: self.prompt.clone(),
            lost,
        })
    }

    /// What tries of the call used, in all attempts, whose answer is not recorded.
    pub(super) fn lost(&self) -> Used {
        let unsettled = self.ctx.unsettled().into_iter();
        unsettled.fold(Used::default(), |lost, usage| {
            lost.plus(Used {
                input_tokens: usage.input_tokens,
                output_tokens: usage.output_tokens,
                cost_micros: usage.cost_micros,
            })
        })
    }

    fn usage(&self, used: &Usage, model: &str) -> journal::Usage {
        let prices = self.parts.rules.prices.as_ref();
        journal::Usage {
            input_tokens: used.input_tokens.unwrap_or(0),
            cached_tokens: used.cached_tokens.unwrap_or(0),
            output_tokens: used.output_tokens.unwrap_or(0),
            reasoning_tokens: used.reasoning_tokens.unwrap_or(0),
            model: model.to_owned(),
            cost_micros: prices.map_or(0, |prices| prices.cost_micros(used)),
            currency: prices.map_or_else(String::new, |prices| prices.currency.clone()),
        }
    }
}

/// The failure as the result of the step: recorded, and tried again by the next attempt if it may
/// pass. Its causes stand in its text, where no secret is; the record has nothing else of them.
fn agent_error(error: &ModelError, told: String, lost: Used) -> AgentError {
    let kind = error.failure().error_type();
    let may_pass = error.may_pass();
    let wait = error.retry_after();
    let mut answer = AgentError::new(kind, told);
    if may_pass {
        answer = answer.retryable();
    }
    if !lost.is_nothing() {
        answer = answer.details(&FailedCall { lost });
    }
    match wait {
        Some(wait) => answer.retry_after(wait),
        None => answer,
    }
}

/// What the tries of a failed model call used, as its error was recorded.
pub(super) fn lost_by(error: &AgentError) -> Used {
    let details = error.details_as();
    details.map_or_else(Used::default, |FailedCall { lost }| lost)
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
