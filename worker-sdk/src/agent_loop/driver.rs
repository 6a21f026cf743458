//! The agent: a model, its tools and the loop around them.
//!
//! Owns the driving: it asks the machine what comes next, does it as a step of the run's journal
//! and feeds the machine what was recorded. So a run that is taken up by another worker goes the
//! same way, reads what is recorded and does the first thing that is not. Decides nothing.

mod batch;
mod builder;
mod calling;
mod checking;
mod deciding;
mod known;
mod report;
mod standing;
mod trying;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::budget::TokenCounter;
use super::hook::Hook;
use super::machine::{Abort, Compaction, End, Machine, ModelCall, Next, Rules};
use super::model::AnyModel;
use super::prompt::{Answer, Prompt};
use super::record::{COMPACT, ModelRecord, compaction_key, turn_key};
use super::redact::Redactor;
use super::request::ToolChoice;
use super::telemetry;
use super::toolbox::Toolbox;
use crate::agent::{Agent, AgentError};
use crate::context::Context;
use crate::error::ErrorKind;
use crate::journal::StepError;

pub use builder::{AgentLoopBuilder, ModelRetry};
pub use report::{CallState, Ended, ToolReport};
pub use standing::Standing;

/// An agent that is a language model with tools.
///
/// It is an [`Agent`] as any other: a [`crate::Worker`] serves it, the run's deadline and
/// cancellation are its own, and every model call, tool call and compaction is a step of the run's
/// journal. When a worker dies, the run goes on at the first step that is not recorded.
///
/// ```no_run
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
/// use worker_sdk::agent_loop::{
///     AgentLoop, Class, Line, PendingCall, ScriptedModel, Tool, ToolContext, ToolError, Verdict,
/// };
/// use worker_sdk::{AgentError, Worker};
///
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Search {
///     /// Words to look for.
///     query: String,
/// }
///
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Mail {
///     to: String,
///     text: String,
/// }
///
/// async fn search(_: ToolContext, arguments: Search) -> Result<Vec<String>, ToolError> {
///     Ok(vec![format!("a page about {}", arguments.query)])
/// }
///
/// async fn mail(ctx: ToolContext, arguments: Mail) -> Result<String, ToolError> {
///     let key = ctx.idempotency_key();
///     Ok(format!("{} bytes sent to {} under {key}", arguments.text.len(), arguments.to))
/// }
///
/// /// What changes nothing may run; mail goes to Ann alone.
/// async fn approve(call: PendingCall) -> Result<Verdict, AgentError> {
///     if call.class == Class::ReadOnly {
///         return Ok(Verdict::Allow);
///     }
///     if call.arguments["to"] == "ann@example.com" {
///         return Ok(Verdict::allowed_by("the list of recipients"));
///     }
///     Ok(Verdict::deny("Mail goes to Ann alone. Do without it."))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     // A real one is Anthropic::from_env or OpenAi::from_env, with a feature each.
///     let model = ScriptedModel::new([
///         Line::call("search", json!({"query": "rivers"})),
///         Line::call("mail", json!({"to": "ann@example.com", "text": "The Nile is a river."})),
///         Line::text("Ann knows about the Nile now."),
///     ]);
///     let agent = AgentLoop::builder(model)
///         .system("You look things up and write mails.")
///         .tool(Tool::new("search", "Looks words up.", search).class(Class::ReadOnly).parallel_safe())
///         .tool(Tool::new("mail", "Sends a mail. Not to be undone.", mail))
///         .before_tool(approve)
///         .build()?;
///     Worker::builder(agent).name("research").run().await?;
///     Ok(())
/// }
/// ```
///
/// # Another version, another prompt
/// A run goes on under whatever version of the agent takes it up: what its journal holds counts as
/// it is recorded, and system text, tools, model and limits are this version's. A call that ran is
/// told to the model as run, also where its tool has gone or wants other arguments; one that had
/// begun and cannot be run any more has an unknown outcome; one that was refused before the model
/// went on is not run late. The prompt is the run's: a journal of another prompt is
/// JOURNAL_MISMATCH.
///
/// # Output
/// Unless told otherwise the text of the answers goes to the caller as it comes, as pieces of the
/// run's output (see [`super::Piece`]).
///
/// # Errors
/// A run that ends without an answer is an agent error whose type says how: `Refused`,
/// `Truncated`, `ToolFailed`, `Aborted`, what a hook ended it with, or what the model failed with,
/// such as `ModelUnavailable`. Its details are [`Ended`]: which tools finished, never started, or are
/// unknown.
#[derive(Clone)]
pub struct AgentLoop(Arc<Parts>);

/// What an agent is made of.
pub(super) struct Parts {
    model: Arc<dyn AnyModel>,
    toolbox: Toolbox,
    hooks: Vec<Arc<dyn Hook>>,
    rules: Rules,
    system: Option<Arc<str>>,
    tool_choice: ToolChoice,
    temperature: Option<f32>,
    stream: bool,
    retry: ModelRetry,
    counter: Arc<dyn TokenCounter>,
    redactor: Redactor,
    unauthorized_is_fatal: bool,
    parallel_tools: usize,
    fixed_tokens: u64,
}

impl AgentLoop {
    /// An agent around this model.
    pub fn builder(model: impl super::model::Model) -> AgentLoopBuilder {
        AgentLoopBuilder::new(Arc::new(model))
    }

    /// Runs to its end, whatever that is, and reports how it came to it. The context of an attempt on
    /// a file runs it without a harness (see [*Alone*](super#alone)); one of [`crate::testing`] on
    /// any journal, or on none:
    ///
    /// ```
    /// use worker_sdk::agent_loop::{AgentLoop, Line, ScriptedModel};
    /// use worker_sdk::testing;
    ///
    /// #[tokio::main(flavor = "current_thread")]
    /// async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let agent = AgentLoop::builder(ScriptedModel::new([Line::text("Paris.")])).build()?;
    ///     let (ctx, _) = testing::context().build();
    ///     let ended = agent.run(&ctx, &"What is the capital of France?".into()).await?;
    ///     assert_eq!(ended.turns, 1);
    ///     assert_eq!(ended.into_answer()?.text, "Paris.");
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Nobody but who runs it stops it at the deadline of such a context.
    ///
    /// # Errors
    /// The prompt asks nothing; the journal cannot be written, is one of another prompt, or holds
    /// what no loop wrote; a hook failed, which is retryable.
    pub async fn run(&self, ctx: &Context, prompt: &Prompt) -> Result<Ended, AgentError> {
        prompt.check().map_err(AgentError::invalid_request)?;
        let span = self.0.span(ctx);
        let run = Run {
            parts: &self.0,
            ctx,
            prompt: prompt.digest(),
            span: span.clone(),
        };
        run.to_the_end(prompt).instrument(span).await
    }
}

impl Parts {
    pub(super) fn machine(&self, prompt: &Prompt) -> Machine {
        let opening = prompt.messages();
        Machine::new(
            self.rules.clone(),
            opening,
            self.fixed_tokens,
            &*self.counter,
        )
    }

    fn span(&self, ctx: &Context) -> Span {
        telemetry::invoke_agent(ctx.run_id(), self.model.provider(), self.model.model())
    }
}

impl Agent for AgentLoop {
    type Request = Prompt;
    type Reply = Answer;

    async fn reply(&self, ctx: Context, prompt: Prompt) -> Result<Answer, AgentError> {
        self.run(&ctx, &prompt).await?.into_answer()
    }
}

/// One run, as one attempt sees it.
struct Run<'a> {
    parts: &'a Parts,
    ctx: &'a Context,
    /// The digest of the prompt, which tells a journal of this run from one of another.
    prompt: String,
    span: Span,
}

/// What a caller is told whose prompt is not the one of the run.
const OTHER_PROMPT: &str = "the journal of this run was written for another prompt: go on with the \
     prompt the run was begun with, or begin another run, which has another run id";

impl Run<'_> {
    /// The loop.
    async fn to_the_end(&self, prompt: &Prompt) -> Result<Ended, AgentError> {
        let begin = Instant::now();
        let mut machine = self.parts.machine(prompt);
        let mut tools = Vec::new();
        let end = loop {
            if self.ctx.is_cancelled() {
                machine.abort(Abort::Cancelled, &[], &*self.parts.counter);
            }
            match machine.next() {
                Next::Done(end) => break end,
                Next::Compact(plan) => self.compact(&mut machine, plan).await?,
                Next::CallModel(call) => self.call_model(&mut machine, &call).await?,
                Next::RunTools(planned) => {
                    let batch = self.run_tools(machine.turns(), planned).await?;
                    tools.extend(batch.reports);
                    match batch.abort {
                        Some(abort) => machine.abort(abort, &batch.results, &*self.parts.counter),
                        None => machine.tool_results(batch.results, &*self.parts.counter),
                    }
                }
            }
        };
        match &end {
            End::Aborted(reason) => telemetry::abort(reason, machine.turns()),
            End::Answered { .. } => {
                let run_id = self.ctx.run_id();
                telemetry::final_answer(run_id, machine.turns(), machine.used(), begin.elapsed());
            }
            End::Refused { .. }
            | End::Truncated { .. }
            | End::ToolFailed { .. }
            | End::ModelFailed(_) => {}
        }
        Ok(Ended::new(end, &machine, tools))
    }

    async fn compact(&self, machine: &mut Machine, plan: Compaction) -> Result<(), AgentError> {
        let key = compaction_key(machine.turns() + 1, machine.compactions());
        let step = self
            .ctx
            .step(COMPACT, |_| std::future::ready(Ok(plan)))
            .key(key)
            .read_only();
        let recorded: Compaction = match self.unless_cancelled(step).await? {
            Some(recorded) => recorded,
            None => return Ok(()),
        };
        machine.compacted(&recorded, &*self.parts.counter);
        Ok(())
    }

    async fn call_model(&self, machine: &mut Machine, call: &ModelCall) -> Result<(), AgentError> {
        let request = self.request(machine, call);
        let step = self
            .ctx
            .step(super::record::MODEL, |_| self.model_work(machine, request))
            .key(turn_key(call.turn))
            .read_only();
        match self.unless_cancelled(step).await {
            Ok(Some(ModelRecord::Answered { prompt, .. })) if prompt != self.prompt => {
                return Err(AgentError::journal_mismatch(OTHER_PROMPT));
            }
            Ok(Some(record)) => record.feed(machine, &*self.parts.counter),
            // The loop looks at the cancellation next.
            Ok(None) => {}
            Err(StepError::Failed(error)) => {
                machine.lost(calling::lost_by(&error));
                machine.model_failed(calling::failed(&error));
            }
            Err(StepError::Journal(error)) if error.kind() == ErrorKind::PayloadTooLarge => {
                machine.lost(self.lost());
                machine.model_failed(calling::not_recorded(&error));
            }
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }

    /// What a future gives, or None when the run is to stop first. What is done counts, also when
    /// both come at once.
    async fn unless_cancelled<T>(
        &self,
        work: impl IntoFuture<Output = Result<T, StepError>>,
    ) -> Result<Option<T>, StepError> {
        tokio::select! {
            biased;
            result = work.into_future() => match result {
                Ok(value) => Ok(Some(value)),
                Err(StepError::Journal(_)) if self.ctx.is_cancelled() => Ok(None),
                Err(error) => Err(error),
            },
            () = self.ctx.cancelled() => Ok(None),
        }
    }
}

impl std::fmt::Debug for AgentLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentLoop")
            .field("provider", &self.0.model.provider())
            .field("model", &self.0.model.model())
            .field("tools", &self.0.toolbox.specs().len())
            .finish_non_exhaustive()
    }
}
