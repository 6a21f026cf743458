//! Agents that are a language model with tools.
//!
//! [`AgentLoop`] stands between a model and its tools and makes false what a loop of fifteen lines
//! takes for granted: that arguments are valid, that tools answer, that a conversation may grow for
//! ever, that nobody wants to stop it, that nothing dies. It is an [`Agent`](crate::Agent) as any
//! other, so a worker serves it, and it runs alone on a journal in a file.
//!
//! | what goes wrong | what happens |
//! |---|---|
//! | arguments are not valid | mended where nothing can be lost, else the model is told every problem; nothing is run on a guess ([`prepare_arguments`]) |
//! | a call should not run | hooks see what the tool would get and allow it, deny it or end the run; what they said is kept ([`AgentLoopBuilder::before_tool`]) |
//! | a tool fails, hangs, panics | tried again only where its [`Class`] allows that; the last error is what the model reads |
//! | the worker dies | the next one reads the journal and goes on at the first thing that is not recorded; a side effect never runs twice |
//! | the model is cut off | no call of a cut answer is ever run ([`Finish`]) |
//! | the provider fails | judged in one order ([`judge`]), waited for as it asks, within the run's deadline |
//! | the model goes in circles | failing tools, repeated calls, turns, tokens and cost end the run ([`Limits`]) |
//! | the conversation gets too long | the oldest results of tools go first, whole pairs only ([`Budget`]) |
//! | somebody stops it | every call has a result, and it is known which tools ran ([`Ended`], [`AgentLoop::standing`]) |
//!
//! Begin with [`AgentLoop`], whose example is a whole agent with two tools and a hook; then
//! [`AgentLoopBuilder`] has the settings of an agent, [`Tool`] those of a tool and [`ToolError`] what a
//! tool says when it fails.
//!
//! # Alone
//! With no harness an agent runs on a journal in a file (feature `local-journal`). When the process
//! dies, `journal::Local::attempt` under the same run id goes on with the
//! run, in any other process that has the file:
//!
#![cfg_attr(feature = "local-journal", doc = "```")]
#![cfg_attr(not(feature = "local-journal"), doc = "```ignore")]
//! use worker_sdk::agent_loop::{AgentLoop, End, Line, ScriptedModel};
//! use worker_sdk::journal::Local;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("journal.db");
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let agent = AgentLoop::builder(ScriptedModel::new([Line::text("Paris.")])).build()?;
//! let file = Local::open(&path)?;
//! let attempt = file.begin();
//! let run_id = attempt.run_id();
//! let answer = attempt.run(&agent, "What is the capital of France?".into()).await?;
//! assert_eq!(answer.text, "Paris.");
//!
//! // With the whole report, in the next attempt; the model is not called again.
//! let ctx = file.attempt(&run_id)?.context();
//! let ended = agent.run(&ctx, &"What is the capital of France?".into()).await?;
//! assert!(matches!(ended.end, End::Answered { .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```
//!
//! # What an operator sees
//! Spans and events of the crate `tracing`, for which the program installs a subscriber; all targets
//! begin with `worker_sdk::agent_loop`. An attempt is the span `invoke_agent` with the `run_id`, below
//! it each try of a model call is a `chat` and each try of a tool an `execute_tool`, named as
//! OpenTelemetry names them. What an attempt reads back from the journal it does not tell again, only
//! how the run ended.
//!
//! | event | of what | fields |
//! |---|---|---|
//! | `turn_start` | a model call | `run_id`, `turn`, `input_tokens` as estimated |
//! | `response` | its answer | `run_id`, `turn`, `response_id`, `finish` |
//! | `model_error`, a warning | a try of it that failed | `run_id`, `turn`, `attempt`, `error_type`, `status`, `error`, `retry_in_ms` |
//! | `tool_allowed` | a call the hooks let run | `tool`, `call_id`, `by` if they say who, `latency_ms` |
//! | `tool_dispatch` | a try of a tool | `tool`, `call_id`, `args`, `attempt` |
//! | `tool_result` | how the try ended, or the call that was denied, or settled without one | `tool`, `call_id`, `latency_ms`, `status`: `ok`, `error`, `timeout`, `denied`, `unknown` |
//! | `check_failed`, a warning | a try of [`Tool::verified_by`] that failed | `tool`, `call_id`, `attempt`, `error`, `retry_in_ms` |
//! | `abort` | a run that a limit, a hook or its caller ended | `reason`, `turn` |
//! | `final_answer` | a run that was answered | `run_id`, `total_turns`, `total_tokens`, `wall_time_ms` |
//!
//! No answer of a model is in them, and in the arguments of a call what is named as a secret, or was
//! given to [`AgentLoopBuilder::secret`], is hidden.
//!
//! # Features
//! `agent-loop` has all of this with [`ScriptedModel`]; `anthropic` and `openai` add a provider each
//! and an HTTP client, `local-journal` the journal in a file. A worker without them builds none of
//! it. The types of a tool's arguments derive `serde::Deserialize` and `schemars::JsonSchema` (of
//! schemars 1).
//!
//! # How it is cut
//! [`Machine`] decides and is pure: no tool, no model, no clock. [`AgentLoop`] does what it says, each
//! thing as a step of the run's journal, and feeds it what was recorded. So a run is resumed by doing
//! the same again, and what a model is sent is a function of the journal alone.

#[cfg(feature = "anthropic")]
mod anthropic;
mod arguments;
mod budget;
#[cfg(feature = "http-model")]
mod decoding;
mod digest;
mod driver;
mod excerpt;
mod failure;
mod hook;
#[cfg(feature = "http-model")]
mod http;
mod machine;
mod message;
mod model;
#[cfg(feature = "openai")]
mod openai;
mod pairs;
mod pieces;
mod prompt;
#[cfg(feature = "http-model")]
mod provider;
#[cfg(all(test, feature = "http-model"))]
mod recorded;
mod record;
mod redact;
mod request;
mod response;
mod scripted;
#[cfg(feature = "http-model")]
mod sse;
mod telemetry;
mod tool;
mod toolbox;

#[cfg(feature = "anthropic")]
pub use anthropic::Anthropic;
pub use arguments::{ArgumentSchema, Problem, Rejection, SchemaError, prepare_arguments};
pub use budget::{Budget, BytesOverThree, Limits, Prices, TokenCounter};
pub use driver::{AgentLoop, AgentLoopBuilder, CallState, Ended, ModelRetry, Standing, ToolReport};
pub use failure::{Answered, Failure, ModelError, judge};
pub use hook::{PendingCall, Verdict};
#[cfg(feature = "http-model")]
pub use http::ProviderError;
pub use machine::{
    Abort, Compaction, End, Machine, ModelCall, ModelFailed, Next, Planned, Rules, ToolOutcome,
    ToolResult, Used,
};
pub use message::{Assistant, Block, Call, CallResult, Message, Source};
pub use model::Model;
#[cfg(feature = "openai")]
pub use openai::{OpenAi, OutputCap};
pub use pieces::{Piece, Pieces};
pub use prompt::{Answer, Prompt, Said, Speaker};
#[cfg(feature = "http-model")]
pub use provider::Provider;
pub use request::{Request, Thinking, ToolChoice, ToolSpec};
pub use response::{Finish, Response, Usage};
pub use scripted::{Line, ScriptedModel};
pub use tool::{Class, Tool, ToolContext, ToolError};
pub use toolbox::ToolboxError;
