//! Reading JSON without losing anything.
//!
//! Owns what plain parsing would swallow: a member that stands twice, an integer too long to be
//! held exactly. A string that holds JSON is read once more, so a text is decoded at most twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The value a text means: its JSON, or where that is a string, the JSON in it.
pub(super) fn decoded(text: &str) -> Result<Value, String> {
    match exactly(text)? {
        Value::String(inner) => exactly(inner.trim()),
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_)) => Ok(value),
    }
}

/// One JSON text, read once.
fn exactly(text: &str) -> Result<Value, String> {
    let Exact(value) = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(number) = inexact_integer(text) {
        return Err(format!(
            "the integer {number} is too long to be held exactly"
        ));
    }
    Ok(value)
}

/// The first integer of a valid JSON text that only a rounded number could hold.
fn inexact_integer(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at + 1),
            b'-' | b'0'..=b'9' => {
                let end = number_end(bytes, at);
                let number = &text[at..end];
                let is_integer = !number.contains(['.', 'e', 'E']);
                if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(number);
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

/// Behind the quote that closes a string whose text begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn number_end(bytes: &[u8], start: usize) -> usize {
    let is_part = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
    start
        + bytes[start..]
            .iter()
            .take_while(|byte| is_part(byte))
            .count()
}

/// A JSON value whose objects name each member once.
struct Exact(Value);

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExactVisitor).map(Self)
    }
}

struct ExactVisitor;

impl<'de> Visitor<'de> for ExactVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("the number is too large"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Exact(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Exact(value))) = members.next_entry::<String, Exact>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!(
                    "the member {name:?} stands twice"
                )));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
