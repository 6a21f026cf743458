//! What a model is told about arguments that cannot be used.
//!
//! Owns the wording and its bounds: what a model wrote comes back to it cut, however long it was.

use std::fmt;

use jsonschema::ValidationError;
use serde_json::Value;

use crate::agent_loop::excerpt::head;

/// Problems told at most; the number of the others is said.
const PROBLEMS_MAX: usize = 8;

/// Bytes of an expectation or a value that are shown at most.
const SHOWN_BYTES: usize = 200;

/// One thing that is wrong with arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, as a JSON pointer into the arguments; empty for the whole.
    pub path: String,
    /// Which keyword of the schema; `json` where the text is none, `type` where it is no object.
    pub keyword: String,
    /// What the schema expects there, bounded.
    pub expected: String,
    /// What came, bounded.
    pub got: String,
}

/// Why arguments cannot be used, for the model to read and do better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    problems: Vec<Problem>,
    more: usize,
}

impl Rejection {
    /// The problems, at most eight.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What the model gets as the result of its call.
    pub fn observation(&self, tool: &str) -> String {
        use fmt::Write as _;
        let mut text = format!("The arguments of {tool} are not valid, so it was not run:");
        for problem in &self.problems {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n- {problem}");
        }
        if self.more > 0 {
            let _ = write!(text, "\n- and {} more", self.more);
        }
        text.push_str("\nCall it again with arguments that match its schema.");
        text
    }

    pub(super) fn unreadable(why: String) -> Self {
        Self::of_one("json", "one JSON object", why)
    }

    pub(super) fn not_an_object(value: &Value) -> Self {
        Self::of_one("type", "one JSON object", shown(&value.to_string()))
    }

    /// A value that matches the schema but not the Rust type the tool takes.
    pub(crate) fn not_of_the_type(error: &serde_json::Error) -> Self {
        Self::of_one(
            "type",
            "arguments of the tool's own type",
            shown(&error.to_string()),
        )
    }

    pub(super) fn of_errors<'a>(
        document: &Value,
        errors: impl Iterator<Item = ValidationError<'a>>,
    ) -> Self {
        let mut problems = Vec::new();
        let mut more = 0;
        for error in errors {
            if problems.len() < PROBLEMS_MAX {
                problems.push(Problem::of(document, &error));
            } else {
                more += 1;
            }
        }
        Self { problems, more }
    }

    fn of_one(keyword: &str, expected: &str, got: String) -> Self {
        let problem = Problem {
            path: String::new(),
            keyword: keyword.to_owned(),
            expected: expected.to_owned(),
            got: shown(&got),
        };
        Self {
            problems: vec![problem],
            more: 0,
        }
    }
}

impl Problem {
    fn of(document: &Value, error: &ValidationError<'_>) -> Self {
        let expected = document.pointer(error.schema_path().as_str());
        Self {
            path: shown(error.instance_path().as_str()),
            keyword: error.kind().keyword().to_owned(),
            expected: expected.map_or_else(String::new, |expected| shown(&expected.to_string())),
            got: shown(&error.instance().to_string()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() {
            "the arguments"
        } else {
            &self.path
        };
        write!(
            f,
            "{place}: {} expects {}, got {}",
            self.keyword, self.expected, self.got
        )
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            let between = if place == 0 { "" } else { "; " };
            write!(f, "{between}{problem}")?;
        }
        Ok(())
    }
}

/// The beginning of a text, with a mark where it was cut.
fn shown(text: &str) -> String {
    if text.len() <= SHOWN_BYTES {
        return text.to_owned();
    }
    format!("{}...", head(text, SHOWN_BYTES))
}
