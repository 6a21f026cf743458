//! What schemas take and refuse, and how a mismatch reads.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Flaw, Schema, SchemaError, Schemas, Subject};
use crate::envelope::{Code, Failure, Payload};

/// What a loaded machine may take on top of a bound.
const SLACK: std::time::Duration = std::time::Duration::from_secs(20);

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
    check(&schema, Subject::Request, &payload).expect_err("a mismatch")
}

/// Checks here, and apart too: the two must agree.
fn check(schema: &Schema, subject: Subject, payload: &Payload) -> Result<(), Box<Failure>> {
    let apart = schema
        .check_apart(subject, payload)
        .map_err(|flaw| match flaw {
            Flaw::Mismatch(failure) => failure,
            Flaw::TooSlow => panic!("too slow"),
        });
    let here = schema.check_here(subject, payload).expect("a cheap check");
    assert_eq!(format!("{here:?}"), format!("{apart:?}"));
    here
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
    assert!(check(&schema, Subject::Reply, &payload).is_ok());
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

fn json_payload(text: String) -> Payload {
    Payload {
        content_type: String::new(),
        data: text.into(),
    }
}

/// Definitions that each refer to the next one twice.
fn chain(links: usize, with: &Value) -> Value {
    let mut defs = serde_json::Map::new();
    for link in 0..links {
        let next = json!({ "$ref": format!("#/$defs/d{}", link + 1) });
        let mut schema = with.clone();
        schema["allOf"] = json!([next, next]);
        defs.insert(format!("d{link}"), schema);
    }
    defs.insert(format!("d{links}"), json!({"type": "integer"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// Three ways to take each level of nested arrays.
fn bomb() -> Value {
    let items = |tag: &str| json!({"items": {"$ref": "#"}, "title": tag});
    json!({"anyOf": [
        {"allOf": [items("a"), {"contains": false}]},
        {"allOf": [items("b"), {"contains": false}]},
        {"type": "integer"},
    ]})
}

fn on_its_thread<T: Send>(check: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(super::STACK_BYTES);
        let running = thread.spawn_scoped(scope, check).expect("a thread");
        running.join().expect("the check must not panic")
    })
}

#[test]
fn a_schema_that_grows_when_its_refs_are_written_out_is_refused() {
    let refused = compiled(chain(27, &json!({}))).expect_err("too costly");
    assert!(
        matches!(refused, SchemaError::TooCostly { .. }),
        "{refused}"
    );
    assert!(compiled(chain(9, &json!({}))).is_ok());
    let mut straight = chain(100, &json!({}));
    for link in 0..100 {
        straight["$defs"][format!("d{link}")]["allOf"] =
            json!([{ "$ref": format!("#/$defs/d{}", link + 1) }]);
    }
    assert!(compiled(straight).is_ok());
    let unevaluated = chain(12, &json!({"unevaluatedProperties": false}));
    assert!(matches!(
        compiled(unevaluated),
        Err(SchemaError::TooCostlyUnevaluated { .. })
    ));
}

#[test]
fn a_property_that_is_called_like_a_keyword_does_not_hide_its_schema() {
    let mut hidden = chain(27, &json!({}));
    hidden["properties"] = json!({"$defs": {"$ref": "#/$defs/d0"}, "enum": true});
    hidden.as_object_mut().expect("an object").remove("$ref");
    assert!(matches!(
        compiled(hidden),
        Err(SchemaError::TooCostly { .. })
    ));
    let escaped = json!({
        "$ref": "#/$defs/a~1b%20c",
        "$defs": {"a/b c": {"$anchor": "x", "$dynamicAnchor": "y", "type": "integer"}},
        "allOf": [{"$ref": "#x"}, {"$dynamicRef": "#y"}],
    });
    assert!(!super::cost::of(&escaped).recursive);
}

#[test]
fn cheap_checks_are_made_here_and_others_apart() {
    let flat = compiled(json!({"type": "object", "properties": {"a": {"type": "string"}}}))
        .expect("valid")
        .expect("not empty");
    let small = json_payload(r#"{"a": "b"}"#.to_owned());
    assert!(flat.check_here(Subject::Request, &small).is_some());
    let large = json_payload(json!({"a": "x".repeat(1 << 20)}).to_string());
    assert!(flat.check_here(Subject::Request, &large).is_none());
    assert!(flat.check_apart(Subject::Request, &large).is_ok());
    let broad = compiled(chain(9, &json!({})))
        .expect("valid")
        .expect("not empty");
    let number = json_payload("1".to_owned());
    assert!(broad.check_here(Subject::Request, &number).is_some());
    let longer = json_payload(json!(vec![1; 1000]).to_string());
    assert!(broad.check_here(Subject::Request, &longer).is_none());
    let text = json_payload(json!("x".repeat(10_000)).to_string());
    let plain = compiled(json!({"type": "string"}))
        .expect("valid")
        .expect("not empty");
    assert!(plain.check_here(Subject::Request, &text).is_some());
    let pattern = compiled(json!({"pattern": "^(\\w{20}){9}$"}))
        .expect("valid")
        .expect("not empty");
    assert!(pattern.check_here(Subject::Request, &text).is_none());
    let recursive = compiled(json!({"items": {"$ref": "#"}}))
        .expect("valid")
        .expect("not empty");
    assert!(recursive.check_here(Subject::Request, &number).is_none());
    assert!(recursive.check_apart(Subject::Request, &number).is_ok());
}

#[test]
fn the_schema_of_a_recursive_enum_is_taken_and_holds() {
    // As schemars writes it for enum Expr { Number(f64), Add(Box<Expr>, Box<Expr>), Not(Box<Expr>) }.
    let reference = json!({"$ref": "#/$defs/Expr"});
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Request",
        "type": "object",
        "required": ["expr"],
        "properties": {"expr": reference},
        "$defs": {"Expr": {"oneOf": [
            {"type": "object", "additionalProperties": false, "required": ["Number"],
             "properties": {"Number": {"type": "number", "format": "double"}}},
            {"type": "object", "additionalProperties": false, "required": ["Add"],
             "properties": {"Add": {"type": "array", "prefixItems": [reference, reference],
                                    "minItems": 2, "maxItems": 2}}},
            {"type": "object", "additionalProperties": false, "required": ["Not"],
             "properties": {"Not": reference}},
        ]}},
    });
    let schema = compiled(schema).expect("valid").expect("not empty");
    let nested = |leaf: Value| {
        let mut expr = json!({ "Number": leaf });
        for _ in 0..30 {
            expr = json!({"Add": [{"Not": {"Number": 1}}, expr]});
        }
        json_payload(json!({ "expr": expr }).to_string())
    };
    on_its_thread(|| {
        let good = schema.check_apart(Subject::Request, &nested(json!(1)));
        assert!(good.is_ok(), "{good:?}");
        let bad = schema.check_apart(Subject::Request, &nested(json!("x")));
        assert!(matches!(bad, Err(Flaw::Mismatch(_))), "{bad:?}");
    });
}

#[test]
fn a_check_that_takes_too_long_is_cut_off() {
    let wide: Vec<Value> = (0..3000).map(|n| json!({ "maximum": n + 10 })).collect();
    let schema = compiled(json!({"items": {"allOf": wide}}))
        .expect("valid")
        .expect("not empty");
    let long = json_payload(json!(vec![1; 500_000]).to_string());
    let start = std::time::Instant::now();
    let found = on_its_thread(|| schema.check_apart(Subject::Request, &long));
    assert!(matches!(found, Err(Flaw::TooSlow)), "{found:?}");
    // Whole, it takes minutes.
    assert!(start.elapsed() < super::CHECK_TIMEOUT + SLACK);
}

#[test]
fn mismatches_that_double_at_each_level_are_not_listed() {
    let schema = compiled(bomb()).expect("valid").expect("not empty");
    let deep = json_payload(format!("{}1{}", "[".repeat(100), "]".repeat(100)));
    let start = std::time::Instant::now();
    let found = on_its_thread(|| schema.check_apart(Subject::Request, &deep));
    assert!(matches!(found, Err(Flaw::Mismatch(_))), "{found:?}");
    assert!(start.elapsed() < super::CHECK_TIMEOUT + SLACK);
}

#[test]
fn a_check_that_goes_too_deep_is_cut_off() {
    let mut schema = json!({"$ref": "#/$defs/d0", "$defs": {}});
    for link in 0..1000 {
        schema["$defs"][format!("d{link}")] = json!({ "$ref": format!("#/$defs/d{}", link + 1) });
    }
    schema["$defs"]["d1000"] = json!({"items": {"$ref": "#"}});
    let schema = compiled(schema).expect("valid").expect("not empty");
    let deep = json_payload(format!("{}1{}", "[".repeat(120), "]".repeat(120)));
    let found = on_its_thread(|| schema.check_apart(Subject::Request, &deep));
    assert!(matches!(found, Err(Flaw::TooSlow)), "{found:?}");
}

#[test]
fn mismatches_beyond_counting_are_not_listed() {
    let many: Vec<Value> = (0..500).map(|_| json!({"type": "integer"})).collect();
    let schema = compiled(json!({"items": {"allOf": many}}))
        .expect("valid")
        .expect("not empty");
    let nulls = json_payload(json!(vec![Value::Null; 100_000]).to_string());
    let found = on_its_thread(|| schema.check_apart(Subject::Request, &nulls));
    let Err(Flaw::Mismatch(failure)) = found else {
        panic!("{found:?}");
    };
    assert!(failure.message.contains("too many"), "{}", failure.message);
}

#[test]
fn a_condemned_schema_is_not_taken_again() {
    let schemas = Schemas::new(1024);
    let text = Bytes::from_static(b"{\"type\":\"string\"}");
    let schema = schemas.intern(&text).expect("valid").expect("not empty");
    schemas.condemn(&schema);
    assert!(schema.is_condemned());
    drop(schema);
    assert!(matches!(schemas.intern(&text), Err(SchemaError::Condemned)));
    for other in 0..1000 {
        schemas.refuse(&Bytes::from(format!("{{\"title\":\"{other}\"}}")));
    }
    assert!(schemas.intern(&text).is_ok(), "the set is bounded");
}
