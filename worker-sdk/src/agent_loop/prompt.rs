//! What an agent of the loop is asked and what it answers.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

// By hand: one schema of two types says what is wrong with a value, a choice of two schemas
// only that neither fits.
impl JsonSchema for Prompt {
    fn schema_name() -> Cow<'static, str> {
        "Prompt".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let said = generator.subschema_for::<Said>();
        json_schema!({
            "description": "What an agent is asked: a text, or a conversation so far.",
            "type": ["string", "object"],
            "minLength": 1,
            "required": ["messages"],
            "properties": {
                "messages": {
                    "description": "In order; the last is what is asked.",
                    "type": "array",
                    "minItems": 1,
                    "items": said
                }
            }
        })
    }
}

impl JsonSchema for Speaker {
    fn schema_name() -> Cow<'static, str> {
        "Speaker".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "Who.", "enum": ["user", "assistant"] })
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or an object whose `messages` are what was said so far")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(text.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompt, A::Error> {
        #[derive(Deserialize)]
        struct Conversation {
            messages: Vec<Said>,
        }
        let Conversation { messages } = Conversation::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Prompt::Conversation { messages })
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The caller.
    User,
    /// The agent.
    Assistant,
}

impl Prompt {
    pub(crate) fn messages(&self) -> Vec<Message> {
        // An answer may be empty; no provider takes an empty message.
        let said = self.said().into_iter();
        let said = said.filter(|(_, text)| !text.trim().is_empty());
        said.map(|(from, text)| match from {
            Speaker::User => Message::user(text),
            Speaker::Assistant => Message::assistant(text),
        })
        .collect()
    }

    /// Whether there is something to answer.
    ///
    /// # Errors
    /// Why there is not, and what to do.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self.said().last() {
            Some((_, text)) if text.trim().is_empty() => {
                Err("the prompt ends with an empty text: end it with what the user asks")
            }
            Some((Speaker::User, _)) => Ok(()),
            Some((Speaker::Assistant, _)) => {
                Err("the prompt ends with what the assistant said: end it with what the user asks")
            }
            None => Err("the prompt has no messages: end it with what the user asks"),
        }
    }

    fn said(&self) -> Vec<(Speaker, &str)> {
        match self {
            Self::Text(text) => vec![(Speaker::User, text)],
            Self::Conversation { messages } => {
                let said = messages.iter();
                said.map(|said| (said.from, &*said.text)).collect()
            }
        }
    }

    /// What tells it from other prompts, on every machine and in every version. A text is the
    /// conversation of that one text.
    pub(crate) fn digest(&self) -> String {
        let bytes = self.said().into_iter().flat_map(|(from, text)| {
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
    /// Model calls it took that are recorded.
    pub turns: u32,
    /// Tool calls it took.
    pub tool_calls: u32,
    /// Tokens read, cached ones included; estimated where the provider of an answer does not say.
    pub input_tokens: u64,
    /// Tokens written, thinking included; estimated where the provider of an answer does not say.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_prompt_goes_through_its_json_and_what_is_none_is_told_what_one_is() {
        let talk = json!({"messages": [
            {"from": "user", "text": "Hello"},
            {"from": "assistant", "text": "Hello!"},
            {"from": "user", "text": "Go."}
        ]});
        let schema = serde_json::to_value(schemars::schema_for!(Prompt)).expect("JSON");
        let schema = jsonschema::validator_for(&schema).expect("a schema");
        for value in [json!("Go."), talk] {
            let prompt: Prompt = serde_json::from_value(value.clone()).expect("a prompt");
            assert_eq!(serde_json::to_value(&prompt).expect("JSON"), value);
            assert!(schema.is_valid(&value), "{value}");
            assert_eq!(prompt.check(), Ok(()));
        }
        for (value, keyword, told) in [
            (json!(7), "type", "a text, or an object"),
            (json!(["Go."]), "type", "a text, or an object"),
            (json!({"prompt": "Go."}), "required", "messages"),
            (json!({"messages": "Go."}), "type", "expected a sequence"),
            (
                json!({"messages": [{"from": "me", "text": "Go."}]}),
                "enum",
                "unknown variant",
            ),
        ] {
            let error = serde_json::from_value::<Prompt>(value.clone()).expect_err("no prompt");
            assert!(error.to_string().contains(told), "{value}: {error}");
            let error = schema.validate(&value).expect_err("no prompt");
            assert_eq!(error.kind().keyword(), keyword, "{value}: {error}");
        }
    }

    #[test]
    fn a_prompt_that_asks_nothing_is_told_what_to_do() {
        let said = |from: &str, text: &str| json!({"from": from, "text": text});
        let talk = |messages: Vec<Value>| json!({ "messages": messages });
        for (value, told) in [
            (json!(""), "empty"),
            (json!(" \n"), "empty"),
            (talk(vec![]), "no messages"),
            (talk(vec![said("user", "Go."), said("user", "")]), "empty"),
            (
                talk(vec![said("user", "Go."), said("assistant", "I go.")]),
                "assistant",
            ),
        ] {
            let prompt: Prompt = serde_json::from_value(value.clone()).expect("a prompt");
            let why = prompt.check().expect_err("it asks nothing");
            assert!(why.contains(told), "{value}: {why}");
        }
        let answered_nothing = [
            said("user", "Go."),
            said("assistant", ""),
            said("user", "On."),
        ];
        let prompt: Prompt = serde_json::from_value(talk(answered_nothing.to_vec())).expect("one");
        assert_eq!(prompt.check(), Ok(()));
        let said = [Message::user("Go."), Message::user("On.")];
        assert_eq!(prompt.messages(), said);
    }
}
