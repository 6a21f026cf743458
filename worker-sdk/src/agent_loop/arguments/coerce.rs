//! Mending arguments where the schema says how and nothing is lost.
//!
//! Owns the few changes that cannot change the meaning: a string to the number, boolean, array or
//! object it spells where the schema takes no string, 3.0 to 3 where it takes an integer, null for
//! an optional property that takes no null to nothing. It never wraps, never drops an unknown
//! member and never makes one kind of scalar of another. Where the schema leaves a choice it does
//! nothing; validation then says what is wrong.

mod shape;

use serde_json::{Map, Number, Value};

use super::read;
use shape::{Shape, Types};

/// Up to here every integer is a double of its own.
const EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// What may be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mend {
    /// Only 3.0 to 3: the value is valid already.
    Integers,
    /// All of it.
    All,
}

/// A valid value with its integers written as such.
pub(super) fn integers(document: &Value, value: Value) -> Value {
    if has_integral_float(&value) {
        mended(document, document, value, Mend::Integers)
    } else {
        value
    }
}

/// A value with everything mended that can be.
pub(super) fn all(document: &Value, value: Value) -> Value {
    mended(document, document, value, Mend::All)
}

fn mended(document: &Value, schema: &Value, value: Value, mend: Mend) -> Value {
    let types = Shape::of(document, schema, &value).types;
    let value = scalar(types, value, mend);
    match value {
        Value::Object(members) => {
            // What a string turned out to hold decides which branch of the schema it is.
            let object = Value::Object(members);
            let shape = Shape::of(document, schema, &object);
            let Value::Object(members) = object else {
                return object;
            };
            Value::Object(object_members(document, &shape, members, mend))
        }
        Value::Array(items) => {
            let array = Value::Array(items);
            let shape = Shape::of(document, schema, &array);
            let Value::Array(items) = array else {
                return array;
            };
            let items =
                items
                    .into_iter()
                    .enumerate()
                    .map(|(place, item)| match shape.item(place) {
                        Some(schema) => mended(document, schema, item, mend),
                        None => item,
                    });
            Value::Array(items.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

fn object_members(
    document: &Value,
    shape: &Shape<'_>,
    members: Map<String, Value>,
    mend: Mend,
) -> Map<String, Value> {
    let mut kept = Map::new();
    for (name, value) in members {
        let Some(schema) = shape.member(&name) else {
            kept.insert(name, value);
            continue;
        };
        let is_superfluous = mend == Mend::All
            && value.is_null()
            && shape.is_optional(&name)
            && !Shape::of(document, schema, &value).types.has(Types::NULL);
        if !is_superfluous {
            kept.insert(name, mended(document, schema, value, mend));
        }
    }
    kept
}

fn scalar(types: Types, value: Value, mend: Mend) -> Value {
    match value {
        Value::String(text) if mend == Mend::All && !types.has(Types::STRING) => {
            spelled(types, &text).unwrap_or(Value::String(text))
        }
        Value::Number(number) if types.has(Types::INTEGER) && !types.has(Types::NUMBER) => {
            Value::Number(integral(&number).unwrap_or(number))
        }
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => value,
    }
}

/// What a string spells, if that is of a type the schema takes. The forms exclude each other.
fn spelled(types: Types, text: &str) -> Option<Value> {
    match text {
        "true" if types.has(Types::BOOLEAN) => return Some(Value::Bool(true)),
        "false" if types.has(Types::BOOLEAN) => return Some(Value::Bool(false)),
        _ => {}
    }
    if let Some(number) = spelled_number(types, text) {
        return Some(Value::Number(number));
    }
    if !types.has(Types::ARRAY) && !types.has(Types::OBJECT) {
        return None;
    }
    let value = read::decoded(text.trim()).ok()?;
    let wanted = (value.is_array() && types.has(Types::ARRAY))
        || (value.is_object() && types.has(Types::OBJECT));
    wanted.then_some(value)
}

/// The number a string spells, if writing the number gives the same string again, or if it has so
/// few digits that none can be lost.
fn spelled_number(types: Types, text: &str) -> Option<Number> {
    if !types.has(Types::INTEGER) && !types.has(Types::NUMBER) {
        return None;
    }
    let number: Number = serde_json::from_str(text).ok()?;
    let again = number.to_string();
    if number.is_f64() {
        let digits = text.chars().filter(char::is_ascii_digit).count();
        let is_exact = again == text || digits <= 15;
        return (types.has(Types::NUMBER) && is_exact).then_some(number);
    }
    (again == text).then_some(number)
}

fn integral(number: &Number) -> Option<Number> {
    let value = number.as_f64().filter(|_| number.is_f64())?;
    if value.fract() != 0.0 || value.abs() >= EXACT_INTEGER {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "integral and within the exact range"
    )]
    let integer = value as i64;
    Some(integer.into())
}

fn has_integral_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => integral(number).is_some(),
        Value::Array(items) => items.iter().any(has_integral_float),
        Value::Object(members) => members.values().any(has_integral_float),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}
