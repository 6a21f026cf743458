//! The tools of an agent, checked when they are registered.
//!
//! Owns the look-up by name and what a model is shown. A schema stands here once: what the model
//! sees is the document that arguments are held against.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::arguments::{ArgumentSchema, Rejection, SchemaError, prepare_arguments};
use super::request::{ToolChoice, ToolSpec};
use super::tool::{Class, Tool};

/// Letters of a tool's name at most.
const NAME_BYTES_MAX: usize = 64;

/// Names listed to a model that called a tool there is not, at most.
const NAMES_LISTED: usize = 64;

/// Why tools cannot be an agent's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolboxError {
    /// Two tools have one name.
    #[error("there are two tools named {0}: give each its own name")]
    Duplicate(String),
    /// A name no provider takes.
    #[error(
        "{0:?} cannot be the name of a tool: it starts with a letter or _, has letters, digits, _ \
         and -, and at most {NAME_BYTES_MAX} of them"
    )]
    InvalidName(String),
    /// The schema of its arguments is none.
    #[error("the tool {tool} cannot be registered: {why}")]
    InvalidSchema {
        /// The tool.
        tool: String,
        /// What is wrong.
        why: SchemaError,
    },
    /// It is to be verified and cannot be.
    #[error("the tool {0} is verifiable but has no check: give it one with verified_by")]
    NoCheck(String),
    /// The model is to call a tool there is not.
    #[error(
        "the model is to call {}, and there is no such tool: give the agent one, or let the model \
         choose (ToolChoice::Auto)",
        .0.as_deref().unwrap_or("a tool")
    )]
    NoSuchTool(Option<String>),
}

/// The tools of an agent.
#[derive(Debug, Default)]
pub(crate) struct Toolbox {
    entries: Vec<Arc<Entry>>,
    by_name: HashMap<String, usize>,
    specs: Arc<[ToolSpec]>,
}

/// A tool with its compiled schema.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) tool: Tool,
    schema: ArgumentSchema,
}

impl Toolbox {
    pub(crate) fn new(tools: Vec<Tool>) -> Result<Self, ToolboxError> {
        let mut toolbox = Self::default();
        let mut specs = Vec::with_capacity(tools.len());
        for tool in tools {
            specs.push(ToolSpec {
                name: tool.name.clone(),
                description: tool.description.clone(),
                parameters: tool.parameters.clone(),
            });
            toolbox.add(tool)?;
        }
        toolbox.specs = specs.into();
        Ok(toolbox)
    }

    fn add(&mut self, tool: Tool) -> Result<(), ToolboxError> {
        if !is_name(&tool.name) {
            return Err(ToolboxError::InvalidName(tool.name));
        }
        if self.by_name.contains_key(&tool.name) {
            return Err(ToolboxError::Duplicate(tool.name));
        }
        if tool.class == Class::Verifiable && tool.check.is_none() {
            return Err(ToolboxError::NoCheck(tool.name));
        }
        let schema = ArgumentSchema::new(tool.parameters.clone()).map_err(|why| {
            ToolboxError::InvalidSchema {
                tool: tool.name.clone(),
                why,
            }
        })?;
        self.by_name.insert(tool.name.clone(), self.entries.len());
        self.entries.push(Arc::new(Entry { tool, schema }));
        Ok(())
    }

    /// Whether the model can do as it is told.
    pub(crate) fn allows(&self, choice: &ToolChoice) -> Result<(), ToolboxError> {
        match choice {
            ToolChoice::Tool(name) if self.get(name).is_none() => {
                Err(ToolboxError::NoSuchTool(Some(name.clone())))
            }
            ToolChoice::Required if self.entries.is_empty() => Err(ToolboxError::NoSuchTool(None)),
            ToolChoice::Auto | ToolChoice::None | ToolChoice::Required | ToolChoice::Tool(_) => {
                Ok(())
            }
        }
    }

    /// What a model is shown.
    pub(crate) fn specs(&self) -> &Arc<[ToolSpec]> {
        &self.specs
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name).map(|place| &self.entries[*place])
    }

    /// What a model is told that called a tool there is not.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        if self.entries.is_empty() {
            return format!("There is no tool named {name:?}; there are no tools.");
        }
        let names: Vec<&str> = self
            .entries
            .iter()
            .take(NAMES_LISTED)
            .map(|entry| entry.tool.name.as_str())
            .collect();
        format!(
            "There is no tool named {name:?}. The tools are: {}.",
            names.join(", ")
        )
    }
}

impl Entry {
    /// The arguments as the tool gets them.
    pub(crate) fn arguments(&self, text: &str) -> Result<Value, Rejection> {
        let arguments = prepare_arguments(text, &self.schema)?;
        self.tool.function.takes(&arguments)?;
        Ok(arguments)
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let begins = bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    begins
        && name.len() <= NAME_BYTES_MAX
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent_loop::{ToolContext, ToolError};

    fn tool(name: &str, parameters: Value) -> Tool {
        Tool::with_schema(
            name,
            "x",
            parameters,
            |_: ToolContext, v: Value| async move { Ok::<_, ToolError>(v) },
        )
    }

    fn object() -> Value {
        json!({"type": "object"})
    }

    #[test]
    fn a_tool_that_cannot_work_is_refused_when_it_is_registered() {
        for name in ["", "1st", "get weather", "größe", "a.b", &"x".repeat(65)] {
            let error = Toolbox::new(vec![tool(name, object())]).expect_err(name);
            assert_eq!(error, ToolboxError::InvalidName(name.to_owned()));
        }
        for name in ["a", "_x", "Get-weather_2", &"x".repeat(64)] {
            Toolbox::new(vec![tool(name, object())]).expect(name);
        }
        let twice = Toolbox::new(vec![tool("a", object()), tool("a", object())]);
        assert_eq!(
            twice.expect_err("twice"),
            ToolboxError::Duplicate("a".to_owned())
        );
        let unchecked = Toolbox::new(vec![tool("a", object()).class(Class::Verifiable)]);
        assert_eq!(
            unchecked.expect_err("no check"),
            ToolboxError::NoCheck("a".to_owned())
        );
        for schema in [
            json!({"type": "string"}),
            json!({}),
            json!({"type": "object", "properties": 7}),
            json!({"type": "object", "properties": {"a": {"$ref": "http://x.invalid/s"}}}),
            json!({"type": "object", "properties": {"a": {"pattern": "("}}}),
        ] {
            let error = Toolbox::new(vec![tool("a", schema.clone())]).expect_err("no schema");
            assert!(
                matches!(error, ToolboxError::InvalidSchema { .. }),
                "{schema}"
            );
        }
    }

    #[test]
    fn a_choice_that_no_model_can_follow_is_refused() {
        let none = Toolbox::default();
        let one = Toolbox::new(vec![tool("a", object())]).expect("a toolbox");
        let choose = |name: &str| ToolChoice::Tool(name.to_owned());
        for (toolbox, choice, allowed) in [
            (&none, ToolChoice::Auto, true),
            (&none, ToolChoice::Required, false),
            (&one, ToolChoice::Required, true),
            (&one, choose("a"), true),
            (&one, choose("b"), false),
        ] {
            assert_eq!(toolbox.allows(&choice).is_ok(), allowed, "{choice:?}");
        }
        let error = one.allows(&choose("b")).expect_err("no b");
        assert!(
            error.to_string().starts_with("the model is to call b,"),
            "{error}"
        );
    }

    #[test]
    fn a_model_is_shown_the_schema_its_arguments_are_held_against() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let toolbox = Toolbox::new(vec![tool("a", schema.clone())]).expect("a toolbox");
        assert_eq!(toolbox.specs()[0].parameters, schema);
        let entry = toolbox.get("a").expect("the tool");
        assert_eq!(entry.arguments(r#"{"n":"3"}"#), Ok(json!({"n": 3})));
    }

    #[test]
    fn a_model_that_calls_an_unknown_tool_is_told_the_known_ones() {
        let toolbox = Toolbox::new(vec![tool("a", object()), tool("b", object())]).expect("tools");
        let told = toolbox.unknown(&"z".repeat(10_000));
        assert!(told.contains("a, b") && told.len() < 200, "{told}");
    }
}
