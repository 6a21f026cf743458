//! The loop around a language model: what a production agent needs between the model and its
//! tools.

mod arguments;
mod budget;
mod failure;
mod machine;
mod message;
mod model;
mod pairs;
mod pieces;
mod request;
mod response;
mod sse;
mod tool;
mod toolbox;

pub use arguments::{ArgumentSchema, Problem, Rejection, SchemaError, prepare_arguments};
pub use budget::{Budget, BytesOverThree, Limits, Prices, TokenCounter};
pub use failure::{Answered, Failure, ModelError, judge};
pub use machine::{
    Abort, Compaction, End, Machine, ModelCall, Next, Planned, Rules, ToolOutcome, ToolResult, Used,
};
pub use message::{Assistant, Block, Call, CallResult, Message, Source};
pub use model::Model;
pub use pieces::{Piece, Pieces};
pub use request::{Request, Thinking, ToolChoice, ToolSpec};
pub use response::{Finish, Response, Usage};
pub use tool::{Class, Tool, ToolContext, ToolError};
pub use toolbox::ToolboxError;
