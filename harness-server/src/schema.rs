//! Compiled JSON Schemas: the requests an agent takes, the replies it may give.
//!
//! Owns compiling, interning by content and what a check may cost. A worker's schema is hostile
//! input: its size is limited, as it stands and with every `$ref` written out; `$ref` stays within
//! the document; its patterns run on a linear engine. A check that is cheap by calculation may be
//! made where it is needed; any other is made apart, on a thread that can wait, and is cut off.
//! Which schema applies to what is `dispatch`'s and `session`'s decision, which thread checks is
//! `engine`'s.

mod cost;
mod meter;
mod wording;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::envelope::{Code, Failure, Payload};
use crate::ids::SchemaId;

use cost::Cost;
use meter::Allowance;
use wording::shown;

/// How long a check may take; a schema that needs longer is condemned. Waiting for a thread does
/// not count.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The stack that compiling and checks made apart need, in bytes.
pub const STACK_BYTES: usize = 16 * 1024 * 1024;

/// The stack a check may use before it is cut off. What is left is for the schemas that stand
/// within schemas between two looks of the meter; JSON has at most 128 levels.
const CHECK_STACK_BYTES: usize = STACK_BYTES / 2;

/// JSON values a schema may have when every `$ref` is written out.
const NODES_MAX: u64 = 100_000;

/// JSON values that compiling may go through for `unevaluatedProperties` and `unevaluatedItems`;
/// each of them goes through all that is within it.
const COMPILE_NODES_MAX: u64 = 20_000;

/// The memory one pattern of a schema may take when compiled, in bytes.
const PATTERN_BYTES: usize = 1024 * 1024;

/// The memory the patterns of a schema may take together, in bytes.
const PATTERNS_BYTES: usize = 32 * 1024 * 1024;

/// Keywords held against values, by calculation, up to which a check is made where it is needed:
/// about half a millisecond of a release build.
const INLINE_WORK: u64 = 400_000;

/// The same for listing the mismatches, each of which costs a microsecond.
const INLINE_LISTING_WORK: u64 = 10_000;

/// Payload bytes up to which a check is made where it is needed, for the parsing.
const INLINE_BYTES: usize = 64 * 1024;

/// Schemas within schemas up to which a check is made where it is needed, for its stack's sake.
const INLINE_DEPTH: u64 = 100;

/// Steps that listing the mismatches may take, which bounds the memory they take.
const LISTING_STEPS: u64 = 250_000;

/// Condemned schemas remembered at most, the latest ones.
const CONDEMNED_MAX: usize = 256;

/// A compiled schema.
pub struct Schema {
    id: SchemaId,
    text: Bytes,
    value: Value,
    validator: Validator,
    /// The same with a meter in it, once a check was made apart.
    metered: OnceLock<Option<Validator>>,
    cost: Cost,
    condemned: AtomicBool,
    turn: Arc<Semaphore>,
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
    condemned: VecDeque<Bytes>,
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
    /// Too much work.
    #[error(
        "the schema has {nodes} JSON values when every $ref is written out, the limit is {limit}: \
         refer to each definition from fewer places"
    )]
    TooCostly {
        /// Its size, written out.
        nodes: u64,
        /// The limit.
        limit: u64,
    },
    /// Too much work for its unevaluated keywords.
    #[error(
        "the schemas with unevaluatedProperties or unevaluatedItems have {nodes} JSON values \
         within them when every $ref is written out, the limit is {limit}: use \
         additionalProperties and items, or the unevaluated ones in fewer places"
    )]
    TooCostlyUnevaluated {
        /// Their size, written out.
        nodes: u64,
        /// The limit.
        limit: u64,
    },
    /// A check against it has taken too long before.
    #[error(
        "a check against this schema took longer than {CHECK_TIMEOUT:?}, so this harness does \
         not take it again: give each value fewer keywords (anyOf, oneOf, allOf), or send less in one \
         payload"
    )]
    Condemned,
    /// The harness cannot compile schemas.
    #[error("the schema cannot be compiled now: {0}")]
    Unable(&'static str),
}

/// What is held against a schema, for the wording of a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A request: the caller's mistake.
    Request,
    /// A reply: the agent's mistake.
    Reply,
}

/// What a check made apart finds.
#[derive(Debug)]
pub enum Flaw {
    /// The payload does not match.
    Mismatch(Box<Failure>),
    /// The check took too long: the schema is to be condemned.
    TooSlow,
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
    /// Compiling can take a second of CPU and, for hostile schemas, a stack of `STACK_BYTES`.
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
        if let Some(known) = self.known(text)? {
            return Ok(Some(known));
        }
        let value: Value = serde_json::from_slice(text)?;
        if let Some(foreign) = foreign_ref(&value) {
            return Err(SchemaError::ForeignRef(foreign));
        }
        let cost = cost::of(&value);
        cost.check()?;
        let validator = compile(&value, &cost).map_err(SchemaError::Invalid)?;
        let id = SchemaId(self.next.fetch_add(1, Ordering::Relaxed));
        let text = Bytes::copy_from_slice(text);
        let schema = Arc::new(Schema {
            id,
            text: text.clone(),
            value,
            validator,
            metered: OnceLock::new(),
            cost,
            condemned: AtomicBool::new(false),
            turn: Arc::new(Semaphore::new(1)),
        });

        let mut interned = self.lock();
        if let Some(known) = interned.known(&text)? {
            return Ok(Some(known));
        }
        interned
            .by_text
            .retain(|_, schema| schema.strong_count() > 0);
        interned.by_id.retain(|_, schema| schema.strong_count() > 0);
        interned.by_text.insert(text, Arc::downgrade(&schema));
        interned.by_id.insert(id, Arc::downgrade(&schema));
        Ok(Some(schema))
    }

    /// A schema in use, by its text.
    ///
    /// # Errors
    /// It is condemned.
    pub fn known(&self, text: &Bytes) -> Result<Option<Arc<Schema>>, SchemaError> {
        self.lock().known(text)
    }

    /// A schema in use, by its number.
    #[must_use]
    pub fn get(&self, id: SchemaId) -> Option<Arc<Schema>> {
        self.lock().by_id.get(&id).and_then(Weak::upgrade)
    }

    /// Refuses a schema from now on.
    pub fn condemn(&self, schema: &Schema) {
        if schema.condemned.swap(true, Ordering::Relaxed) {
            return;
        }
        self.refuse(&schema.text);
    }

    /// Refuses a text from now on.
    pub fn refuse(&self, text: &Bytes) {
        let mut interned = self.lock();
        if interned.condemned.contains(text) {
            return;
        }
        if interned.condemned.len() >= CONDEMNED_MAX {
            interned.condemned.pop_front();
        }
        interned.condemned.push_back(Bytes::copy_from_slice(text));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Interned> {
        self.interned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interned {
    fn known(&self, text: &Bytes) -> Result<Option<Arc<Schema>>, SchemaError> {
        if self.condemned.contains(text) {
            return Err(SchemaError::Condemned);
        }
        Ok(self.by_text.get(text).and_then(Weak::upgrade))
    }
}

impl Schema {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> SchemaId {
        self.id
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// Whether a check against it has taken too long.
    #[must_use]
    pub fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Relaxed)
    }

    /// Whose turn it is to be checked apart; one at a time.
    #[must_use]
    pub fn turn(&self) -> &Arc<Semaphore> {
        &self.turn
    }

    /// Holds a payload against it if that takes about a millisecond at most by calculation; none
    /// when the check must be made apart. Payloads that are not JSON pass.
    #[must_use]
    pub fn check_here(
        &self,
        subject: Subject,
        payload: &Payload,
    ) -> Option<Result<(), Box<Failure>>> {
        if !payload.is_json() {
            return Some(Ok(()));
        }
        let text = &*payload.data;
        if !self.cost.is_within(INLINE_WORK, text) || self.is_condemned() {
            return None;
        }
        let value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => return Some(Err(wording::not_json(subject, &error))),
        };
        if self.validator.is_valid(&value) {
            return Some(Ok(()));
        }
        let listed = self.cost.is_within(INLINE_LISTING_WORK, text);
        listed.then(|| {
            let schema = &self.value;
            Err(wording::mismatches(
                schema,
                &self.validator,
                subject,
                &value,
            ))
        })
    }

    /// Holds a payload against it within `CHECK_TIMEOUT`, or a little more where the validator
    /// cannot be cut off. To be called on a thread of its own with a stack of `STACK_BYTES`.
    /// Payloads that are not JSON pass.
    ///
    /// # Errors
    /// INVALID_REQUEST or INVALID_REPLY with, for each mismatch, the JSON pointer, the keyword,
    /// what was expected and what was got; or that it took too long.
    pub fn check_apart(&self, subject: Subject, payload: &Payload) -> Result<(), Flaw> {
        let mismatch = |failure| Err(Flaw::Mismatch(failure));
        let until = Instant::now() + CHECK_TIMEOUT;
        if !payload.is_json() {
            return Ok(());
        }
        let value: Value = match serde_json::from_slice(&payload.data) {
            Ok(value) => value,
            Err(error) => return mismatch(wording::not_json(subject, &error)),
        };
        let metered = self.metered.get_or_init(|| self.compile_metered());
        let validator = metered.as_ref().unwrap_or(&self.validator);
        let allowance = |steps| Allowance {
            until,
            steps,
            stack: CHECK_STACK_BYTES,
        };
        match meter::within(allowance(u64::MAX), || validator.is_valid(&value)) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(meter::Spent) => return Err(Flaw::TooSlow),
        }
        // Its errors take memory that nothing but the meter bounds.
        if metered.is_none() {
            return mismatch(wording::too_many(subject));
        }
        let listed = meter::within(allowance(LISTING_STEPS), || {
            wording::mismatches(&self.value, validator, subject, &value)
        });
        mismatch(listed.unwrap_or_else(|meter::Spent| wording::too_many(subject)))
    }

    /// None where unwinding ends the process: nothing can be cut off there.
    fn compile_metered(&self) -> Option<Validator> {
        if cfg!(panic = "abort") {
            return None;
        }
        compile(&meter::metered(&self.value), &self.cost).ok()
    }
}

impl Cost {
    fn check(&self) -> Result<(), SchemaError> {
        // Written out, a recursive schema has no end; its checks are cut off instead.
        if !self.recursive && self.nodes > NODES_MAX {
            return Err(SchemaError::TooCostly {
                nodes: self.nodes,
                limit: NODES_MAX,
            });
        }
        if self.compile > COMPILE_NODES_MAX {
            return Err(SchemaError::TooCostlyUnevaluated {
                nodes: self.compile,
                limit: COMPILE_NODES_MAX,
            });
        }
        Ok(())
    }

    /// Whether a check of a JSON text takes so much at most, by calculation.
    fn is_within(&self, limit: u64, text: &[u8]) -> bool {
        if self.recursive || self.depth > INLINE_DEPTH || text.len() > INLINE_BYTES {
            return false;
        }
        let bytes = text.len() as u64;
        let by_byte = self.byte_work.saturating_mul(bytes);
        let of = |values| self.work.saturating_mul(values).saturating_add(by_byte);
        // No text has more values than bytes; mostly that is enough to know.
        of(bytes) <= limit || {
            // A value is the first of the text, or of its container, or follows a comma.
            let starts = text
                .iter()
                .filter(|byte| matches!(byte, b',' | b'[' | b'{'));
            of(1 + starts.count() as u64) <= limit
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.id).finish()
    }
}

impl Subject {
    /// The code of a payload that does not match.
    #[must_use]
    pub fn code(self) -> Code {
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

fn compile(schema: &Value, cost: &Cost) -> Result<Validator, String> {
    let pattern_bytes = PATTERN_BYTES.min(PATTERNS_BYTES / cost.patterns.max(1));
    jsonschema::draft202012::options()
        .offline()
        .with_pattern_options(PatternOptions::regex().size_limit(pattern_bytes))
        .with_keyword(meter::KEYWORD, meter::keyword)
        .build(schema)
        .map_err(|error| shown(&error.to_string()))
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
