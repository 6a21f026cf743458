//! What an agent of the loop is asked and what it answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::digest::fnv1a;
use super::machine::Used;
use super::message::Message;

/// What an agent is asked: a text, or a conversation so far.
///
/// As JSON a string, or an object with `messages`:
///
/// ```
/// use worker_sdk::agent_loop::Prompt;
///
/// let text: Prompt = serde_json::from_str(r#""What is the capital of France?""#)?;
/// assert_eq!(text, Prompt::from("What is the capital of France?"));
/// let more: Prompt = serde_json::from_str(
///     r#"{"messages": [
///         {"from": "user", "text": "Hello"},
///         {"from": "assistant", "text": "Hello! What can I do?"},
///         {"from": "user", "text": "What is the capital of France?"}
///     ]}"#,
/// )?;
/// # assert_ne!(text, more);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// One text.
    Text(String),
    /// A conversation that ends with what is asked.
    Conversation {
        /// In order.
        messages: Vec<Said>,
    },
}

/// What one side said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Said {
    /// Who.
    pub from: Speaker,
    /// What.
    pub text: String,
}

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The caller.
    User,
    /// The agent.
    Assistant,
}

impl Prompt {
    pub(crate) fn messages(&self) -> Vec<Message> {
        match self {
            Self::Text(text) => vec![Message::user(text)],
            Self::Conversation { messages } => messages
                .iter()
                .map(|said| match said.from {
                    Speaker::User => Message::user(&said.text),
                    Speaker::Assistant => Message::assistant(&said.text),
                })
                .collect(),
        }
    }
}

impl Prompt {
    /// What tells it from other prompts, on every machine and in every version. A text is the
    /// conversation of that one text.
    pub(crate) fn digest(&self) -> String {
        let sides: Vec<(Speaker, &str)> = match self {
            Self::Text(text) => vec![(Speaker::User, text)],
            Self::Conversation { messages } => {
                let said = messages.iter();
                said.map(|said| (said.from, &*said.text)).collect()
            }
        };
        let bytes = sides.into_iter().flat_map(|(from, text)| {
            let from = match from {
                Speaker::User => b'u',
                Speaker::Assistant => b'a',
            };
            let length = (text.len() as u64).to_be_bytes();
            std::iter::once(from).chain(length).chain(text.bytes())
        });
        format!("{:016x}", fnv1a(bytes))
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// What an agent answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The model's final answer; empty is legal after results of tools.
    pub text: String,
    /// Model calls it took.
    pub turns: u32,
    /// Tool calls it took.
    pub tool_calls: u32,
    /// Tokens read, cached ones included; estimated where the provider does not say.
    pub input_tokens: u64,
    /// Tokens written, thinking included; estimated where the provider does not say.
    pub output_tokens: u64,
}

impl Answer {
    pub(crate) fn new(text: String, turns: u32, tool_calls: u32, used: Used) -> Self {
        Self {
            text,
            turns,
            tool_calls,
            input_tokens: used.input_tokens,
            output_tokens: used.output_tokens,
        }
    }
}
