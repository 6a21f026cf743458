//! The schema of a tool's arguments, compiled once.
//!
//! Owns what a tool's schema may be: a JSON Schema 2020-12 of an object, with `$ref` only within
//! the document and patterns on a linear engine. The document is kept as it was given: what a model
//! is shown is derived from it.

use std::fmt;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::Rejection;

/// The compiled JSON Schema of a tool's arguments.
pub struct ArgumentSchema {
    document: Value,
    validator: Validator,
}

/// Why a document cannot be the schema of a tool's arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It takes other things than an object.
    #[error("the schema of a tool's arguments must have \"type\": \"object\", this has {0}")]
    NotAnObject(String),
    /// It is no JSON Schema, or refers to another document.
    #[error("not a JSON Schema 2020-12 that stands alone: {0}")]
    Invalid(String),
}

impl ArgumentSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// It is not of an object, no JSON Schema 2020-12, or has a `$ref` to another document.
    pub fn new(document: Value) -> Result<Self, SchemaError> {
        let wanted = document.get("type").cloned().unwrap_or(Value::Null);
        if wanted != "object" {
            return Err(SchemaError::NotAnObject(wanted.to_string()));
        }
        let validator = jsonschema::draft202012::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(&document)
            .map_err(|error| SchemaError::Invalid(error.to_string()))?;
        Ok(Self {
            document,
            validator,
        })
    }

    /// The schema as it was given.
    pub fn document(&self) -> &Value {
        &self.document
    }

    pub(super) fn is_valid(&self, arguments: &Value) -> bool {
        self.validator.is_valid(arguments)
    }

    pub(super) fn check(&self, arguments: &Value) -> Result<(), Rejection> {
        if self.is_valid(arguments) {
            return Ok(());
        }
        let errors = self.validator.iter_errors(arguments);
        Err(Rejection::of_errors(&self.document, errors))
    }
}

impl fmt::Debug for ArgumentSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ArgumentSchema")
            .field(&self.document)
            .finish()
    }
}
