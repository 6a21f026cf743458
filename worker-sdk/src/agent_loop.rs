//! The loop around a language model: what a production agent needs between the model and its
//! tools.

#[cfg(feature = "anthropic")]
mod anthropic;
mod arguments;
mod budget;
#[cfg(feature = "http-model")]
mod decoding;
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
#[cfg(all(test, feature = "http-model"))]
mod recorded;
mod request;
mod response;
#[cfg(feature = "http-model")]
mod sse;
mod tool;
mod toolbox;

#[cfg(feature = "anthropic")]
pub use anthropic::Anthropic;
pub use arguments::{ArgumentSchema, Problem, Rejection, SchemaError, prepare_arguments};
pub use budget::{Budget, BytesOverThree, Limits, Prices, TokenCounter};
pub use failure::{Answered, Failure, ModelError, judge};
#[cfg(feature = "http-model")]
pub use http::ProviderError;
pub use machine::{
    Abort, Compaction, End, Machine, ModelCall, Next, Planned, Rules, ToolOutcome, ToolResult, Used,
};
pub use message::{Assistant, Block, Call, CallResult, Message, Source};
pub use model::Model;
#[cfg(feature = "openai")]
pub use openai::{OpenAi, OutputCap};
pub use pieces::{Piece, Pieces};
pub use request::{Request, Thinking, ToolChoice, ToolSpec};
pub use response::{Finish, Response, Usage};
pub use tool::{Class, Tool, ToolContext, ToolError};
pub use toolbox::ToolboxError;
