//! What models do to valid arguments, done to generated ones: none of it may reach a tool as
//! something else.

use serde_json::{Value, json};

use super::generated::{Kind, Record, Seeded};
use super::{ArgumentSchema, prepare_arguments};

const MUTATIONS: usize = 100_000;

#[test]
fn valid_arguments_reach_the_tool_unchanged() {
    let mut seeded = Seeded(1);
    for _ in 0..300 {
        let record = Record::drawn(&mut seeded, 3);
        let schema = ArgumentSchema::new(record.schema()).expect("a schema");
        for _ in 0..20 {
            let valid = record.instance(&mut seeded);
            let arguments =
                prepare_arguments(&valid.to_string(), &schema).expect("valid arguments");
            // As text, so that 3 and 3.0 differ.
            assert_eq!(
                arguments.to_string(),
                valid.to_string(),
                "{}",
                record.schema()
            );
        }
    }
}

#[test]
fn a_mutated_call_is_the_same_call_or_none() {
    let mut seeded = Seeded(2);
    let (mut done, mut accepted, mut mended) = (0, 0, 0);
    while done < MUTATIONS {
        let record = Record::drawn(&mut seeded, 3);
        let schema = ArgumentSchema::new(record.schema()).expect("a schema");
        for _ in 0..20 {
            let valid = record.instance(&mut seeded);
            for _ in 0..20 {
                let Some(mutated) = mutate(&record, &valid, &mut seeded) else {
                    continue;
                };
                done += 1;
                let Ok(arguments) = prepare_arguments(&mutated.text, &schema) else {
                    continue;
                };
                accepted += 1;
                mended += usize::from(arguments == valid);
                let is_meant = arguments == valid && mutated.may_be_original;
                let is_mutated = mutated.instead.as_ref() == Some(&arguments);
                assert!(
                    is_meant || is_mutated,
                    "accepted and different: {} became {arguments} (valid: {valid}, schema: {})",
                    mutated.text,
                    record.schema()
                );
            }
        }
    }
    assert!(
        accepted > done / 20,
        "only {accepted} of {done} were accepted"
    );
    assert!(mended > done / 20, "only {mended} of {done} were mended");
}

#[test]
fn arguments_cut_at_any_byte_are_not_run() {
    let mut seeded = Seeded(3);
    for _ in 0..200 {
        let record = Record::drawn(&mut seeded, 2);
        let schema = ArgumentSchema::new(record.schema()).expect("a schema");
        let text = record.instance(&mut seeded).to_string();
        // Nothing at all is a call without arguments; the finish reason tells a cut one apart.
        for cut in (1..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let cut = &text[..cut];
            assert!(prepare_arguments(cut, &schema).is_err(), "{cut}");
        }
    }
}

/// A call after something was done to it.
struct Mutated {
    text: String,
    /// What may reach the tool in place of the original, where the change has a meaning.
    instead: Option<Value>,
    /// Whether the original may reach the tool: not where the change has a meaning.
    may_be_original: bool,
}

impl Mutated {
    /// The same arguments, written in another way.
    fn spelling(text: String) -> Option<Self> {
        Some(Self {
            text,
            instead: None,
            may_be_original: true,
        })
    }

    /// Other arguments, which the schema takes or not.
    fn meaning(text: String, instead: Option<Value>) -> Option<Self> {
        Some(Self {
            text,
            instead,
            may_be_original: false,
        })
    }
}

fn mutate(record: &Record, valid: &Value, seeded: &mut Seeded) -> Option<Mutated> {
    let text = valid.to_string();
    match seeded.below(16) {
        0 => Mutated::spelling(Value::String(text).to_string()),
        1 => Mutated::spelling(Value::String(Value::String(text).to_string()).to_string()),
        2 => Mutated::spelling(format!("```json\n{text}\n```")),
        3 => Mutated::spelling(format!("{},}}", text.strip_suffix('}')?)),
        4 => Mutated::spelling(format!(" \n{text}\t")),
        5 => {
            let cut = 1 + seeded.below(text.len() - 1);
            Mutated::spelling(text.get(..cut)?.to_owned())
        }
        6 => Mutated::spelling(format!("[{text}]")),
        _ => inside(record, valid, seeded),
    }
}

/// Does something to one member, of the record itself or of one within it.
fn inside(record: &Record, valid: &Value, seeded: &mut Seeded) -> Option<Mutated> {
    let members = valid.as_object()?;
    let field = seeded.pick(&record.fields);
    let with = |value: Value| {
        let mut changed = members.clone();
        changed.insert(field.name.clone(), value);
        Value::Object(changed)
    };
    let Some(value) = members.get(&field.name) else {
        return absent(record, valid, &field.name, seeded);
    };
    if let (Kind::Record(inner), true) = (&field.kind, seeded.is_one_in(2)) {
        let inner = inside(inner, value, seeded)?;
        let changed = serde_json::from_str(&inner.text).ok()?;
        return Some(Mutated {
            text: with(changed).to_string(),
            instead: inner.instead.map(with),
            may_be_original: inner.may_be_original,
        });
    }
    match seeded.below(6) {
        0 => Mutated::spelling(with(as_text(value)?).to_string()),
        1 if field.kind.is_integer() => {
            Mutated::spelling(with(with_a_fraction(value)?).to_string())
        }
        2 => Mutated::spelling(with(as_python(value)?).to_string()),
        3 => nothing(record, valid, &field.name),
        4 => missing(valid, &field.name, field.is_required),
        _ => other(&field.kind, value, with),
    }
}

/// The value as a string: a scalar by its text, a list or a record by its JSON.
fn as_text(value: &Value) -> Option<Value> {
    (!value.is_string() && !value.is_null()).then(|| Value::String(value.to_string()))
}

fn with_a_fraction(value: &Value) -> Option<Value> {
    let integer = value.as_i64().filter(|integer| integer.abs() < 1 << 53)?;
    serde_json::from_str(&format!("{integer}.0")).ok()
}

fn as_python(value: &Value) -> Option<Value> {
    value
        .as_bool()
        .map(|truth| json!(if truth { "True" } else { "False" }))
}

/// Null in the place of a member.
fn nothing(record: &Record, valid: &Value, name: &str) -> Option<Mutated> {
    let field = record.field(name)?;
    let mut changed = valid.clone();
    changed[name] = Value::Null;
    let text = changed.to_string();
    if field.kind.takes_null() {
        // It may have been null before.
        return Some(Mutated {
            text,
            instead: Some(changed),
            may_be_original: valid[name].is_null(),
        });
    }
    changed.as_object_mut()?.remove(name);
    Mutated::meaning(text, (!field.is_required).then_some(changed))
}

fn missing(valid: &Value, name: &str, is_required: bool) -> Option<Mutated> {
    let mut changed = valid.clone();
    changed.as_object_mut()?.remove(name);
    Mutated::meaning(changed.to_string(), (!is_required).then_some(changed))
}

/// A member that was not there: null where it is optional, or one the schema does not know.
fn absent(record: &Record, valid: &Value, name: &str, seeded: &mut Seeded) -> Option<Mutated> {
    if seeded.is_one_in(2) {
        let mut changed = valid.clone();
        changed["extra"] = json!(*seeded.pick(&["1", "true", ""]));
        let text = changed.to_string();
        return Mutated::meaning(text, (!record.is_closed).then_some(changed));
    }
    let mut changed = valid.clone();
    changed[name] = Value::Null;
    if record.field(name)?.kind.takes_null() {
        return Mutated::meaning(changed.to_string(), Some(changed));
    }
    // Null for nothing: the same call.
    Mutated::spelling(changed.to_string())
}

/// Another value: a choice in the wrong case, a number that is one more, something wrapped.
fn other(kind: &Kind, value: &Value, with: impl Fn(Value) -> Value) -> Option<Mutated> {
    match (kind, value) {
        (Kind::Choice(_), Value::String(choice)) => {
            let other = choice.to_uppercase();
            let is_same = *choice == other;
            let text = with(json!(other)).to_string();
            if is_same {
                return Mutated::spelling(text);
            }
            Mutated::meaning(text, None)
        }
        (Kind::Integer, Value::Number(number)) => {
            let changed = with(json!(number.as_i64()? + 1));
            Mutated::meaning(changed.to_string(), Some(changed))
        }
        (Kind::Text, Value::String(text)) => {
            let changed = with(json!(Value::String(text.clone()).to_string()));
            Mutated::meaning(changed.to_string(), Some(changed))
        }
        (Kind::List(_), Value::Array(items)) => {
            let [item] = items.as_slice() else {
                return None;
            };
            // Never wrapped: a lone item is no list of it.
            let text = with(item.clone()).to_string();
            (!item.is_array() && !item.is_null())
                .then(|| Mutated::meaning(text, None))
                .flatten()
        }
        (Kind::Boolean, Value::Bool(truth)) => {
            Mutated::meaning(with(json!(u8::from(*truth))).to_string(), None)
        }
        _ => None,
    }
}
