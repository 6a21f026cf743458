//! A limit on what one check may take, although the validator knows none.
//!
//! Every schema of the metered copy gets one keyword more, which takes any value and counts. When
//! time, steps or stack are used up it unwinds out of the validator; a check that is cut off this
//! way leaves no thread behind. What a single keyword does (one pattern on one long string) is not
//! cut off; whoever waits for a check must have a limit of their own.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::time::Instant;

use jsonschema::paths::Location;
use jsonschema::{Keyword, ValidationError};
use serde_json::{Map, Value, json};

/// The keyword. In an `allOf` of its own it comes before `$ref`, `anyOf` and all else that can
/// lead to the same value again, so nothing grows without being counted.
pub(super) const KEYWORD: &str = "harness-meter";

/// How many steps pass between two looks at the clock.
const STEPS_A_LOOK: u64 = 4096;

/// What a check may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// When it must be over.
    pub(super) until: Instant,
    /// Keywords held against values, about.
    pub(super) steps: u64,
    /// Stack, in bytes, beyond what is in use at its start.
    pub(super) stack: usize,
}

/// The allowance is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent;

#[derive(Clone, Copy)]
struct Meter {
    allowance: Allowance,
    unseen: u64,
    stack_start: usize,
}

thread_local! {
    /// The meter of the check this thread is in.
    static METER: Cell<Option<Meter>> = const { Cell::new(None) };
}

/// Does a check within an allowance.
pub(super) fn within<T>(allowance: Allowance, check: impl FnOnce() -> T) -> Result<T, Spent> {
    METER.set(Some(Meter {
        allowance,
        unseen: 0,
        stack_start: stack_at(),
    }));
    // Nothing the check has changed is seen by anybody: it only reads.
    let done = panic::catch_unwind(AssertUnwindSafe(check));
    METER.set(None);
    done.or_else(
        |thrown: Box<dyn Any + Send>| match thrown.downcast::<Spent>() {
            Ok(spent) => Err(*spent),
            Err(other) => panic::resume_unwind(other),
        },
    )
}

/// The schema with the keyword in each of its schemas.
pub(super) fn metered(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => metered_object(members),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            schema.clone()
        }
    }
}

fn metered_object(members: &Map<String, Value>) -> Value {
    let mut own: u64 = 1;
    let mut with = Map::new();
    for (key, member) in members {
        own = own.saturating_add(width(member));
        let member = match (key.as_str(), member) {
            (
                "enum" | "const" | "default" | "examples" | "dependentRequired" | "$vocabulary",
                _,
            ) => member.clone(),
            (
                "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs"
                | "definitions",
                Value::Object(by_name),
            ) => by_name
                .iter()
                .map(|(name, schema)| (name.clone(), metered(schema)))
                .collect(),
            (_, Value::Array(items)) => items.iter().map(metered).collect(),
            (_, _) => metered(member),
        };
        with.insert(key.clone(), member);
    }
    let meter = json!({ KEYWORD: own });
    // Last, because references may name the others by their numbers.
    match with.entry("allOf").or_insert_with(|| json!([])) {
        Value::Array(all) => all.push(meter),
        // No schema; compiling it says so.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
    }
    Value::Object(with)
}

/// How much one keyword looks at in one value, the schemas in it apart.
fn width(member: &Value) -> u64 {
    match member {
        Value::Object(members) => members.len() as u64 + 1,
        Value::Array(items) => items.len() as u64 + 1,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Makes the keyword.
pub(super) fn keyword<'a>(
    _schema: &'a Map<String, Value>,
    value: &'a Value,
    _at: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    Ok(Box::new(Step(value.as_u64().unwrap_or(1))))
}

struct Step(u64);

impl<'i> Keyword<'i> for Step {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        self.take(instance);
        Ok(())
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        self.take(instance);
        true
    }
}

impl Step {
    fn take(&self, instance: &Value) {
        let parts = match instance {
            Value::Object(members) => members.len(),
            Value::Array(items) => items.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        };
        let steps = self.0.saturating_mul(parts as u64 + 1);
        if let Some(meter) = METER.get() {
            METER.set(Some(meter.after(steps)));
        }
    }
}

impl Meter {
    /// Counts, or unwinds out of the check.
    fn after(mut self, steps: u64) -> Self {
        let left = self.allowance.steps.checked_sub(steps);
        self.unseen = self.unseen.saturating_add(steps);
        let looks = self.unseen >= STEPS_A_LOOK;
        let late = looks && Instant::now() >= self.allowance.until;
        let deep = stack_at().abs_diff(self.stack_start) > self.allowance.stack;
        let Some(left) = left.filter(|_| !late && !deep) else {
            METER.set(None);
            // No panic: nothing is broken, and nothing is printed.
            panic::resume_unwind(Box::new(Spent));
        };
        self.allowance.steps = left;
        if looks {
            self.unseen = 0;
        }
        self
    }
}

/// About where the stack is.
#[inline(never)]
fn stack_at() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
