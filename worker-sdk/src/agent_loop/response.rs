//! A model's answer in one form for all providers.
//!
//! Owns the finish reasons the loop decides by, and usage, normalised and raw. How a provider's
//! body becomes one of these is the provider's affair.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::{Assistant, Block, Call, Source};

/// Why the model stopped; decides what the loop does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It wants the calls in its message run.
    ToolCalls,
    /// It is done.
    Stop,
    /// It was cut off at the output limit or the end of the context: no call of it is run.
    Length,
    /// It will not answer.
    Refusal,
    /// The provider could not read its call.
    Malformed,
    /// The provider wants the message back as it is, to go on.
    Pause,
}

/// A complete answer of a model. One that was cut off on the way never becomes one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The provider's id of it, empty when it gave none.
    pub id: String,
    /// The provider, such as `anthropic`.
    pub provider: String,
    /// The model that was asked, by the name it was asked under.
    pub model: String,
    /// The model that answered, as the provider names it.
    pub answered_by: String,
    /// Why it stopped.
    pub finish: Finish,
    /// What the provider gave as the reason, in its own word.
    pub finish_raw: String,
    /// What it said, in order.
    pub blocks: Vec<Block>,
    /// The provider's own blocks.
    pub raw: Vec<Value>,
    /// What it used.
    pub usage: Usage,
    /// More about the finish: why it refused, which sequence stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a model call used, in tokens. None is unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Read, cached ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Of these, read from the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Written, thinking included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Of these, thinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// As the provider sent it; null when it sent none.
    #[serde(default)]
    pub raw: Value,
}

impl Response {
    /// All text for the caller.
    pub fn text(&self) -> String {
        self.said().text()
    }

    /// The calls, in order.
    pub fn calls(&self) -> Vec<&Call> {
        let calls = self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Text { .. } | Block::Thinking { .. } => None,
        });
        calls.collect()
    }

    /// The message of a conversation that this answer is.
    pub fn said(&self) -> Assistant {
        Assistant {
            blocks: self.blocks.clone(),
            source: Some(Source {
                provider: self.provider.clone(),
                model: self.model.clone(),
                raw: self.raw.clone(),
            }),
        }
    }
}
