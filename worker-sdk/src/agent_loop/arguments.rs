//! From the text a model wrote to the arguments a tool gets, or to an observation for the model.
//!
//! Owns the order of the steps: trim, an empty text is `{}`, read as JSON, must be an object,
//! lossless coercion where the schema asks for it, validation with every error. What comes out is
//! what the model meant or nothing: text that cannot be read is never run as `{}`. Pure; knows no
//! tool and no model.

mod coerce;
mod problem;
mod read;
mod schema;

#[cfg(test)]
mod generated;
#[cfg(test)]
mod mutations;

use serde_json::{Map, Value};

pub use problem::{Problem, Rejection};
pub use schema::{ArgumentSchema, SchemaError};

/// Arguments of a call as the text the model wrote, ready for a tool with this schema.
///
/// ```
/// use serde_json::json;
/// use worker_sdk::agent_loop::{ArgumentSchema, prepare_arguments};
///
/// let schema = ArgumentSchema::new(json!({
///     "type": "object",
///     "properties": {"limit": {"type": "integer"}},
///     "required": ["limit"],
///     "additionalProperties": false,
/// }))?;
/// let arguments = prepare_arguments(r#"{"limit": "3"}"#, &schema).unwrap();
/// assert_eq!(arguments, json!({"limit": 3}));
///
/// let rejection = prepare_arguments(r#"{"limit": "many"}"#, &schema).unwrap_err();
/// assert_eq!(rejection.problems()[0].path, "/limit");
/// # Ok::<(), worker_sdk::agent_loop::SchemaError>(())
/// ```
///
/// # Errors
/// What the model is to be told: each problem with its path, keyword, what was expected and what
/// came, all bounded.
pub fn prepare_arguments(text: &str, schema: &ArgumentSchema) -> Result<Value, Rejection> {
    let text = text.trim();
    let value = if text.is_empty() {
        Value::Object(Map::new())
    } else {
        read::decoded(text).map_err(Rejection::unreadable)?
    };
    if !value.is_object() {
        return Err(Rejection::not_an_object(&value));
    }
    if schema.is_valid(&value) {
        // Nothing to mend, but JSON Schema takes 3.0 for an integer and typed tools do not.
        return Ok(coerce::integers(schema.document(), value));
    }
    let coerced = coerce::all(schema.document(), value);
    schema.check(&coerced)?;
    Ok(coerced)
}

/// The text of arguments in one form for all texts that mean the same: members sorted, no space.
/// A text that cannot be read is its own form. Two calls with the same form are identical.
pub(crate) fn canonical(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return "{}".to_owned();
    }
    // serde_json's map is sorted, whatever the order the text had.
    read::decoded(text).map_or_else(|_| text.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(document: Value) -> ArgumentSchema {
        ArgumentSchema::new(document).expect("a schema")
    }

    fn search() -> ArgumentSchema {
        schema(json!({
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1},
                "exact": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "near": {"$ref": "#/$defs/Point"},
            },
            "required": ["query"],
            "additionalProperties": false,
            "$defs": {"Point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x", "y"],
            }},
        }))
    }

    #[test]
    fn what_is_meant_without_loss_is_mended() {
        for (text, meant) in [
            (
                r#"{"query":"a","limit":"3"}"#,
                json!({"query": "a", "limit": 3}),
            ),
            (
                r#"{"query":"a","limit":3.0}"#,
                json!({"query": "a", "limit": 3}),
            ),
            (
                r#"{"query":"a","exact":"true"}"#,
                json!({"query": "a", "exact": true}),
            ),
            (r#"{"query":"a","limit":null}"#, json!({"query": "a"})),
            (
                r#"{"query":"a","tags":"[\"x\"]"}"#,
                json!({"query": "a", "tags": ["x"]}),
            ),
            (
                r#"{"query":"a","near":"{\"x\":\"1.5\",\"y\":2}"}"#,
                json!({"query": "a", "near": {"x": 1.5, "y": 2}}),
            ),
            (r#""{\"query\":\"a\"}""#, json!({"query": "a"})),
            (" {\"query\":\"3\"}\n", json!({"query": "3"})),
        ] {
            let arguments = prepare_arguments(text, &search());
            assert_eq!(
                arguments.expect(text).to_string(),
                meant.to_string(),
                "{text}"
            );
        }
    }

    #[test]
    fn what_could_mean_something_else_is_an_observation() {
        for text in [
            "",
            r#"{"query":"a""#,
            r#"{"query":"a",}"#,
            "```json\n{\"query\":\"a\"}\n```",
            r#"["a"]"#,
            r#""\"\\\"{}\\\"\"""#,
            r#"{"query":["a"],"limit":1}"#,
            r#"{"query":1}"#,
            r#"{"query":null}"#,
            r#"{"query":"a","limit":"03"}"#,
            r#"{"query":"a","limit":"3.0"}"#,
            r#"{"query":"a","limit":3.5}"#,
            r#"{"query":"a","limit":true}"#,
            r#"{"query":"a","exact":1}"#,
            r#"{"query":"a","exact":"True"}"#,
            r#"{"query":"a","tags":"x"}"#,
            r#"{"query":"a","colour":"red"}"#,
            r#"{"query":"a","query":"b"}"#,
            r#"{"query":"a","limit":123456789012345678901234567890}"#,
            r#"{"query":"a","near":"{\"x\":1,\"x\":2,\"y\":3}"}"#,
        ] {
            assert!(prepare_arguments(text, &search()).is_err(), "{text}");
        }
    }

    #[test]
    fn every_problem_is_told_with_where_which_what_and_got() {
        let text = r#"{"limit":"many","colour":"red"}"#;
        let rejection = prepare_arguments(text, &search()).expect_err("three problems");
        let told: Vec<(&str, &str)> = rejection
            .problems()
            .iter()
            .map(|problem| (problem.path.as_str(), problem.keyword.as_str()))
            .collect();
        assert!(told.contains(&("/limit", "type")), "{told:?}");
        assert!(told.contains(&("", "required")), "{told:?}");
        assert!(told.contains(&("", "additionalProperties")), "{told:?}");
        let observation = rejection.observation("search");
        assert!(
            observation.contains("/limit") && observation.contains("\"many\""),
            "{observation}"
        );
    }

    #[test]
    fn an_observation_is_bounded_whatever_the_model_wrote() {
        let text = format!(r#"{{"query":"a","limit":"{}"}}"#, "é".repeat(100_000));
        let observation = prepare_arguments(&text, &search())
            .expect_err("not a number")
            .observation("search");
        assert!(observation.len() < 1_000, "{}", observation.len());
        let many: Vec<String> = (0..500).map(|n| format!(r#""k{n}":{n}"#)).collect();
        let closed = schema(json!({"type": "object", "additionalProperties": {"type": "null"}}));
        let rejection = prepare_arguments(&format!("{{{}}}", many.join(",")), &closed)
            .expect_err("500 problems");
        assert!(rejection.observation("search").len() < 10_000);
        assert!(rejection.observation("search").contains("more"));
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        let ping = schema(json!({"type": "object", "properties": {}}));
        for text in ["", "  \n", "{}", "\"{}\"", "\"\""] {
            let arguments = prepare_arguments(text, &ping);
            if text == "\"\"" {
                assert!(arguments.is_err(), "an empty string is no object");
            } else {
                assert_eq!(arguments.expect(text), json!({}), "{text}");
            }
        }
    }

    #[test]
    fn a_tagged_variant_is_mended_by_its_own_branch_only() {
        let shape = schema(json!({
            "type": "object",
            "properties": {"shape": {"oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "circle"}, "r": {"type": "integer"}},
                    "required": ["kind", "r"],
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "label"}, "r": {"type": "string"}},
                    "required": ["kind", "r"],
                },
            ]}},
            "required": ["shape"],
        }));
        for (text, meant) in [
            (
                r#"{"shape":{"kind":"circle","r":"3"}}"#,
                json!({"shape": {"kind": "circle", "r": 3}}),
            ),
            (
                r#"{"shape":{"kind":"label","r":"3"}}"#,
                json!({"shape": {"kind": "label", "r": "3"}}),
            ),
        ] {
            assert_eq!(prepare_arguments(text, &shape).expect(text), meant);
        }
    }

    #[test]
    fn identical_calls_have_one_canonical_form() {
        assert_eq!(
            canonical(r#"{"b": 1, "a": 2}"#),
            canonical(r#"{"a":2,"b":1}"#)
        );
        assert_eq!(canonical(""), canonical("{}"));
        assert_ne!(canonical(r#"{"a":1}"#), canonical(r#"{"a":"1"}"#));
        assert_eq!(canonical("{broken"), "{broken");
    }
}
