//! What is said between caller, model and tools, in one form for all providers.
//!
//! Owns plain data. The blocks a provider sent are kept beside the normalised ones, because signed
//! thinking must go back byte for byte, and only to the provider and model that signed it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What the caller said.
    User {
        /// The text.
        text: String,
    },
    /// What the model said.
    Assistant(Assistant),
    /// What the tools answered: all results of one turn, in the order of the calls.
    Tools {
        /// One result for each call of the message before.
        results: Vec<CallResult>,
    },
}

/// What a model said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Assistant {
    /// In the order it was said.
    pub blocks: Vec<Block>,
    /// The same as the provider sent it, when it came from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Where blocks came from and how they looked there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The provider, such as `anthropic`.
    pub provider: String,
    /// The model that was asked, by the name it was asked under.
    pub model: String,
    /// The provider's own blocks.
    pub raw: Vec<Value>,
}

/// A part of what a model said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text for the caller.
    Text {
        /// The text.
        text: String,
    },
    /// The model's thinking.
    Thinking {
        /// The text, empty when the provider keeps it to itself.
        text: String,
        /// What proves it to the provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// A call of a tool.
    Call(Call),
}

/// A call of a tool, as the model asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// What its result names. Unique within the run once the loop has taken it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as text, whether they can be read or not.
    pub arguments: String,
}

/// The result of a call, as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// What came out.
    pub text: String,
    /// Whether the call failed.
    #[serde(default)]
    pub is_error: bool,
}

impl Message {
    /// What a caller says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into() }
    }

    /// What a model said before, when the conversation is taken up from elsewhere.
    pub fn assistant(text: impl Into<String>) -> Self {
        let block = Block::Text { text: text.into() };
        Self::Assistant(Assistant {
            blocks: vec![block],
            source: None,
        })
    }

    /// The size of what a model reads of it, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        /// What a provider puts around each block, about.
        const FRAME: usize = 24;
        let bytes = match self {
            Self::User { text } => text.len() + FRAME,
            Self::Assistant(said) => said.blocks.iter().map(|block| FRAME + block.bytes()).sum(),
            Self::Tools { results } => results
                .iter()
                .map(|result| FRAME + result.call_id.len() + result.text.len())
                .sum(),
        };
        bytes as u64
    }
}

impl Assistant {
    /// All text for the caller.
    pub fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            Block::Thinking { .. } | Block::Call(_) => None,
        });
        texts.collect()
    }

    /// The calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Text { .. } | Block::Thinking { .. } => None,
        })
    }
}

impl Block {
    fn bytes(&self) -> usize {
        match self {
            Self::Text { text } => text.len(),
            Self::Thinking { text, signature } => {
                text.len() + signature.as_ref().map_or(0, String::len)
            }
            Self::Call(call) => call.id.len() + call.name.len() + call.arguments.len(),
        }
    }
}
