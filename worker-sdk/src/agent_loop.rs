//! The loop around a language model: what a production agent needs between the model and its
//! tools.

#[cfg(feature = "anthropic")]
mod anthropic;
mod arguments;
mod budget;
#[cfg(feature = "http-model")]
mod decoding;
mod driver;
mod excerpt;
mod failure;
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
pub use request::{Request, Thinking, ToolChoice, ToolSpec};
pub use response::{Finish, Response, Usage};
pub use scripted::{Line, ScriptedModel};
pub use tool::{Class, Tool, ToolContext, ToolError};
pub use toolbox::ToolboxError;
