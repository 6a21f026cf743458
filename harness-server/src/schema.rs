//! Compiled JSON Schemas: the requests an agent takes, the replies it may give.
//!
//! Owns compiling, interning by content and the wording of a mismatch. A worker's schema is
//! hostile input: its size is limited, `$ref` stays within the document and its patterns run on a
//! linear engine. Which schema applies to what is `dispatch`'s and `session`'s decision.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Value, json};

use crate::envelope::{Code, Failure, Payload};
use crate::ids::SchemaId;

/// How many mismatches an error lists at most.
const MISMATCHES_LISTED: usize = 8;

/// How many bytes of a value an error shows at most.
const SHOWN_BYTES: usize = 200;

/// The memory one pattern of a schema may take when compiled, in bytes.
const PATTERN_BYTES: usize = 1024 * 1024;

/// A compiled schema.
pub struct Schema {
    id: SchemaId,
    value: Value,
    validator: Validator,
}

/// Every schema in use, interned by content.
pub struct Schemas {
    next: AtomicU64,
    bytes_max: usize,
    interned: Mutex<Interned>,
}

#[derive(Default)]
struct Interned {
    by_text: HashMap<Bytes, Weak<Schema>>,
    by_id: HashMap<SchemaId, Weak<Schema>>,
}

/// Why a schema is refused; says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// Over the limit.
    #[error("the schema has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Not JSON.
    #[error("the schema is not JSON")]
    NotJson(#[from] serde_json::Error),
    /// A `$ref` that leaves the document.
    #[error(
        "the schema's $ref \"{0}\" leaves the document; only references that start with # work"
    )]
    ForeignRef(String),
    /// Not a JSON Schema.
    #[error("not a JSON Schema 2020-12: {0}")]
    Invalid(String),
}

/// What is held against a schema, for the wording of a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A request: the caller's mistake.
    Request,
    /// A reply: the agent's mistake.
    Reply,
}

impl Schemas {
    /// No schemas yet; each may have so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            next: AtomicU64::new(1),
            bytes_max,
            interned: Mutex::default(),
        }
    }

    /// The compiled form of a schema; none for an empty text. Compiles only what is not known.
    /// Compiling can take milliseconds of CPU.
    ///
    /// # Errors
    /// What is wrong with the schema.
    pub fn intern(&self, text: &Bytes) -> Result<Option<Arc<Schema>>, SchemaError> {
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > self.bytes_max {
            return Err(SchemaError::TooLarge {
                bytes: text.len(),
                limit: self.bytes_max,
            });
        }
        if let Some(known) = self.known(text) {
            return Ok(Some(known));
        }
        let value: Value = serde_json::from_slice(text)?;
        if let Some(foreign) = foreign_ref(&value) {
            return Err(SchemaError::ForeignRef(foreign));
        }
        let validator = jsonschema::draft202012::options()
            .offline()
            .with_pattern_options(PatternOptions::regex().size_limit(PATTERN_BYTES))
            .build(&value)
            .map_err(|error| SchemaError::Invalid(shown(&error.to_string())))?;
        let id = SchemaId(self.next.fetch_add(1, Ordering::Relaxed));
        let schema = Arc::new(Schema {
            id,
            value,
            validator,
        });

        let mut interned = self.lock();
        if let Some(known) = interned.by_text.get(text).and_then(Weak::upgrade) {
            return Ok(Some(known));
        }
        interned
            .by_text
            .retain(|_, schema| schema.strong_count() > 0);
        interned.by_id.retain(|_, schema| schema.strong_count() > 0);
        interned
            .by_text
            .insert(Bytes::copy_from_slice(text), Arc::downgrade(&schema));
        interned.by_id.insert(id, Arc::downgrade(&schema));
        Ok(Some(schema))
    }

    /// A schema in use, by its text.
    #[must_use]
    pub fn known(&self, text: &Bytes) -> Option<Arc<Schema>> {
        self.lock().by_text.get(text).and_then(Weak::upgrade)
    }

    /// A schema in use, by its number.
    #[must_use]
    pub fn get(&self, id: SchemaId) -> Option<Arc<Schema>> {
        self.lock().by_id.get(&id).and_then(Weak::upgrade)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Interned> {
        self.interned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Schema {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> SchemaId {
        self.id
    }

    /// Holds a payload against it. Payloads that are not JSON pass.
    ///
    /// # Errors
    /// INVALID_REQUEST or INVALID_REPLY with, for each mismatch, the JSON pointer, the keyword,
    /// what was expected and what was got.
    pub fn check(&self, subject: Subject, payload: &Payload) -> Result<(), Box<Failure>> {
        if !payload.is_json() {
            return Ok(());
        }
        let value: Value = match serde_json::from_slice(&payload.data) {
            Ok(value) => value,
            Err(error) => {
                let message = format!("the {subject} is not JSON: {error}");
                return Err(Box::new(Failure::new(subject.code(), message)));
            }
        };
        if self.validator.is_valid(&value) {
            return Ok(());
        }
        let mismatches: Vec<Value> = self
            .validator
            .iter_errors(&value)
            .take(MISMATCHES_LISTED)
            .map(|error| self.mismatch(&error))
            .collect();
        let first = mismatches.first().cloned().unwrap_or_default();
        let pointer = first["pointer"].as_str().unwrap_or_default();
        let message = format!(
            "the {subject} does not match the agent's schema: at {}: {} expects {}, got {}",
            if pointer.is_empty() {
                "the top"
            } else {
                pointer
            },
            first["keyword"].as_str().unwrap_or_default(),
            first["expected"],
            first["got"],
        );
        let details = Payload::json(&json!({ "mismatches": mismatches }));
        Err(Box::new(
            Failure::new(subject.code(), message).with_details(details),
        ))
    }

    fn mismatch(&self, error: &ValidationError<'_>) -> Value {
        let expected = self.value.pointer(error.schema_path().as_str());
        json!({
            "pointer": error.instance_path().as_str(),
            "keyword": error.kind().keyword(),
            "expected": bounded(expected.unwrap_or(&Value::Null)),
            "got": bounded(error.instance()),
        })
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.id).finish()
    }
}

impl Subject {
    fn code(self) -> Code {
        match self {
            Self::Request => Code::InvalidRequest,
            Self::Reply => Code::InvalidReply,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Reply => "reply",
        })
    }
}

/// A `$ref` or `$dynamicRef` that does not stay in the document, if there is one.
fn foreign_ref(schema: &Value) -> Option<String> {
    match schema {
        Value::Object(members) => {
            members
                .iter()
                .find_map(|(key, value)| match (key.as_str(), value) {
                    ("$ref" | "$dynamicRef", Value::String(target)) if !target.starts_with('#') => {
                        Some(shown(target))
                    }
                    (_, Value::Object(_) | Value::Array(_)) => foreign_ref(value),
                    (_, Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => None,
                })
        }
        Value::Array(items) => items.iter().find_map(foreign_ref),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// A value as it is when it is short, else its beginning as text.
fn bounded(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= SHOWN_BYTES {
        value.clone()
    } else {
        Value::String(shown(&text))
    }
}

fn shown(text: &str) -> String {
    let mut end = text.len().min(SHOWN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let more = if end < text.len() { "..." } else { "" };
    format!("{}{more}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(schema: Value) -> Result<Option<Arc<Schema>>, SchemaError> {
        Schemas::new(64 * 1024).intern(&schema.to_string().into())
    }

    fn refused(schema: Value, instance: &str) -> Box<Failure> {
        let schema = compiled(schema)
            .expect("a valid schema")
            .expect("not empty");
        let payload = Payload {
            content_type: String::new(),
            data: instance.to_owned().into(),
        };
        schema
            .check(Subject::Request, &payload)
            .expect_err("a mismatch")
    }

    #[test]
    fn a_mismatch_says_where_which_keyword_what_was_expected_and_what_came() {
        let schema = json!({"properties": {"n": {"type": "integer"}}});
        let failure = refused(schema, r#"{"n": "x"}"#);
        assert_eq!(failure.code, Code::InvalidRequest);
        for part in ["/n", "type", "\"integer\"", "\"x\""] {
            assert!(
                failure.message.contains(part),
                "{part} in {}",
                failure.message
            );
        }
        let details: Value =
            serde_json::from_slice(&failure.details.expect("details").data).expect("JSON");
        assert_eq!(
            details["mismatches"][0],
            json!({"pointer": "/n", "keyword": "type", "expected": "integer", "got": "x"})
        );
    }

    #[test]
    fn what_is_not_json_says_so() {
        assert!(
            refused(json!({"type": "string"}), "{")
                .message
                .contains("not JSON")
        );
    }

    #[test]
    fn a_long_value_is_shown_short() {
        let failure = refused(
            json!({"type": "integer"}),
            &format!("\"{}\"", "x".repeat(9000)),
        );
        assert!(failure.message.len() < 600, "{}", failure.message);
    }

    #[test]
    fn payloads_of_another_type_pass() {
        let schema = compiled(json!({"type": "integer"}))
            .expect("valid")
            .expect("not empty");
        let payload = Payload {
            content_type: "text/plain".into(),
            data: "x".into(),
        };
        assert!(schema.check(Subject::Reply, &payload).is_ok());
    }

    #[test]
    fn hostile_schemas_are_refused() {
        let foreign = json!({"$ref": "http://127.0.0.1:1/s"});
        assert!(matches!(compiled(foreign), Err(SchemaError::ForeignRef(_))));
        let file = json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}});
        assert!(matches!(compiled(file), Err(SchemaError::ForeignRef(_))));
        let bomb = json!({"pattern": "((a{1000}){1000}){1000}"});
        assert!(matches!(compiled(bomb), Err(SchemaError::Invalid(_))));
        let backtracking = json!({"pattern": "(a+)+\\1"});
        assert!(matches!(
            compiled(backtracking),
            Err(SchemaError::Invalid(_))
        ));
        assert!(matches!(
            compiled(json!({"type": 5})),
            Err(SchemaError::Invalid(_))
        ));
        let large = json!({"description": "x".repeat(70_000)});
        assert!(matches!(compiled(large), Err(SchemaError::TooLarge { .. })));
        let broken = Schemas::new(1024).intern(&Bytes::from_static(b"{"));
        assert!(matches!(broken, Err(SchemaError::NotJson(_))));
    }

    #[test]
    fn the_same_text_is_compiled_once_and_forgotten_when_unused() {
        let schemas = Schemas::new(1024);
        let text = Bytes::from_static(b"{\"type\":\"string\"}");
        let first = schemas.intern(&text).expect("valid").expect("not empty");
        let second = schemas.intern(&text).expect("valid").expect("not empty");
        assert!(Arc::ptr_eq(&first, &second));
        let id = first.id();
        assert!(schemas.get(id).is_some());
        drop((first, second));
        assert!(schemas.get(id).is_none());
    }
}
