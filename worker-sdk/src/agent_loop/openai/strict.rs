//! Whether a schema can be kept to the letter by OpenAI's constrained sampling.
//!
//! Owns the proof: every object closed and all its properties required, and no keyword the
//! provider does not take. Where it does not succeed the tool is sent as it is, without `strict`.

use serde_json::Value;

/// Keywords that say nothing the sampling cannot keep.
const KNOWN: [&str; 14] = [
    "$defs",
    "$ref",
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "properties",
    "required",
    "title",
    "type",
    "format",
];

/// Formats it keeps.
const FORMATS: [&str; 9] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
];

pub(super) fn is_compatible(schema: &Value) -> bool {
    schema["type"] == "object" && holds(schema)
}

fn holds(schema: &Value) -> bool {
    let Value::Object(keywords) = schema else {
        return false;
    };
    if !keywords
        .keys()
        .all(|keyword| KNOWN.contains(&keyword.as_str()))
    {
        return false;
    }
    let says_what = ["type", "$ref", "anyOf", "enum", "const"];
    if !says_what
        .iter()
        .any(|keyword| keywords.contains_key(*keyword))
    {
        return false;
    }
    let format = keywords.get("format").and_then(Value::as_str);
    if format.is_some_and(|format| !FORMATS.contains(&format)) {
        return false;
    }
    let is_object = match keywords.get("type") {
        Some(Value::Array(types)) => types.iter().any(|name| name == "object"),
        Some(name) => name == "object",
        None => keywords.contains_key("properties"),
    };
    let closed = !is_object || is_closed(schema);
    closed && parts(schema).all(holds)
}

fn is_closed(schema: &Value) -> bool {
    let required = schema["required"].as_array();
    let names = schema["properties"].as_object().into_iter().flatten();
    schema["additionalProperties"] == Value::Bool(false)
        && names
            .map(|(name, _)| name)
            .all(|name| required.is_some_and(|all| all.iter().any(|required| required == name)))
}

/// The schemas within a schema.
fn parts(schema: &Value) -> impl Iterator<Item = &Value> {
    let named = ["properties", "$defs"]
        .into_iter()
        .filter_map(|keyword| schema[keyword].as_object())
        .flat_map(|members| members.values());
    let branches = schema["anyOf"].as_array().into_iter().flatten();
    named.chain(branches).chain(schema.get("items"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_sampling_can_keep_is_strict() {
        let closed = json!({
            "type": "object",
            "properties": {
                "a": {"type": "string", "enum": ["x", "y"]},
                "b": {"type": ["integer", "null"]},
                "c": {"$ref": "#/$defs/P"},
            },
            "required": ["a", "b", "c"],
            "additionalProperties": false,
            "$defs": {"P": {
                "type": "object", "properties": {}, "required": [], "additionalProperties": false,
            }},
        });
        assert!(is_compatible(&closed));
        let with = |change: &dyn Fn(&mut Value)| {
            let mut schema = closed.clone();
            change(&mut schema);
            schema
        };
        for broken in [
            with(&|schema| schema["additionalProperties"] = json!(true)),
            with(&|schema| schema["required"] = json!(["a", "b"])),
            with(&|schema| schema["properties"]["a"]["pattern"] = json!("x")),
            with(&|schema| schema["properties"]["b"]["format"] = json!("uint32")),
            with(&|schema| schema["$defs"]["P"]["additionalProperties"] = json!({})),
            with(&|schema| schema["properties"]["a"] = json!({})),
            json!({"type": "object"}),
            json!({"anyOf": []}),
        ] {
            assert!(!is_compatible(&broken), "{broken}");
        }
    }
}
