//! What a model is asked, in one form for all providers.
//!
//! Owns plain data. A request borrows nothing, so a provider may keep it; messages are shared, so
//! making one copies no text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::Message;

/// A model call.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The number of the model call within the run, from 1.
    pub turn: u32,
    /// What stands above the conversation.
    pub system: Option<Arc<str>>,
    /// The conversation; every call in it has exactly one result.
    pub messages: Vec<Arc<Message>>,
    /// The tools the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// Whether it may, must or must not.
    pub tool_choice: ToolChoice,
    /// The most tokens the answer may have, thinking apart. Always sent.
    pub max_output_tokens: u32,
    /// How much the model may think before.
    pub thinking: Thinking,
    /// How random the answer is; the provider's default when None.
    pub temperature: Option<f32>,
    /// Whether the answer is to come in pieces.
    pub stream: bool,
    /// What the input is estimated to be, in tokens.
    pub input_tokens: u64,
    /// What the input may be, in tokens: an estimate over it explains a provider's 429.
    pub input_tokens_max: u64,
}

/// A tool as a model is shown it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The name it is called by.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
}

/// Whether a model may call tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// None.
    None,
    /// This one.
    Tool(String),
}

/// How much a model may think before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// Nothing is asked for; what the provider does by default.
    #[default]
    Default,
    /// As much as the model finds right.
    Adaptive,
    /// At most so many tokens, beside those of the answer.
    Budget(u32),
}

impl Thinking {
    /// The tokens to reserve for it.
    pub fn reserved_tokens(self) -> u32 {
        match self {
            Self::Default | Self::Adaptive => 0,
            Self::Budget(tokens) => tokens,
        }
    }
}

impl Request {
    /// A request of one message with everything else at its default: 4096 tokens of output, no
    /// tools, streamed.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            turn: 1,
            system: None,
            messages: vec![Arc::new(Message::user(text))],
            tools: Arc::from([]),
            tool_choice: ToolChoice::Auto,
            max_output_tokens: 4096,
            thinking: Thinking::Default,
            temperature: None,
            stream: true,
            input_tokens: 0,
            input_tokens_max: u64::MAX,
        }
    }
}
