//! Schemas and valid arguments drawn from a seed, for the tests of the pipeline.
//!
//! Owns a small language of types, its JSON Schema and an own judgement of what fits, so that the
//! tests do not ask the code under test what is right.

use serde_json::{Map, Value, json};

/// Numbers from a seed (splitmix64): the same ones on every machine.
pub(super) struct Seeded(pub(super) u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("the remainder must be below a usize")
    }

    pub(super) fn is_one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// A type of the small language.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Integer,
    Number,
    Boolean,
    Text,
    Choice(Vec<&'static str>),
    List(Box<Kind>),
    Record(Record),
    OrNull(Box<Kind>),
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) fields: Vec<Field>,
    /// Whether other members are refused.
    pub(super) is_closed: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) is_required: bool,
}

impl Record {
    pub(super) fn drawn(seeded: &mut Seeded, depth: u32) -> Self {
        let fields = (0..1 + seeded.below(5)).map(|place| Field {
            name: format!("{}{place}", seeded.pick(&["limit", "Name", "x", "größe"])),
            kind: Kind::drawn(seeded, depth),
            is_required: seeded.is_one_in(2),
        });
        Self {
            fields: fields.collect(),
            is_closed: !seeded.is_one_in(3),
        }
    }

    pub(super) fn schema(&self) -> Value {
        let properties: Map<String, Value> = self
            .fields
            .iter()
            .map(|field| (field.name.clone(), field.kind.schema()))
            .collect();
        let required: Vec<&str> = self
            .fields
            .iter()
            .filter(|field| field.is_required)
            .map(|field| field.name.as_str())
            .collect();
        let mut schema = json!({
            "type": "object", "properties": properties, "required": required,
        });
        if self.is_closed {
            schema["additionalProperties"] = json!(false);
        }
        schema
    }

    pub(super) fn instance(&self, seeded: &mut Seeded) -> Value {
        let mut members = Map::new();
        for field in &self.fields {
            if field.is_required || seeded.is_one_in(2) {
                members.insert(field.name.clone(), field.kind.instance(seeded));
            }
        }
        if !self.is_closed && seeded.is_one_in(4) {
            members.insert("unknown".to_owned(), json!(["kept", 3.0, null, "4"]));
        }
        Value::Object(members)
    }

    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl Kind {
    fn drawn(seeded: &mut Seeded, depth: u32) -> Self {
        let kinds = if depth == 0 { 5 } else { 8 };
        match seeded.below(kinds) {
            0 => Self::Integer,
            1 => Self::Number,
            2 => Self::Boolean,
            3 => Self::Text,
            4 => Self::Choice(vec!["red", "green", "blue", "true", "7"]),
            5 => Self::List(Box::new(Self::drawn(seeded, depth - 1))),
            6 => Self::Record(Record::drawn(seeded, depth - 1)),
            _ => Self::OrNull(Box::new(Self::drawn(seeded, 0))),
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::Integer => json!({"type": "integer"}),
            Self::Number => json!({"type": "number"}),
            Self::Boolean => json!({"type": "boolean"}),
            Self::Text => json!({"type": "string"}),
            Self::Choice(choices) => json!({"type": "string", "enum": choices}),
            Self::List(kind) => json!({"type": "array", "items": kind.schema()}),
            Self::Record(record) => record.schema(),
            Self::OrNull(kind) => json!({"anyOf": [kind.schema(), {"type": "null"}]}),
        }
    }

    fn instance(&self, seeded: &mut Seeded) -> Value {
        match self {
            Self::Integer => json!(*seeded.pick(&[0, 1, -7, 42, 9_007_199_254_740_993_i64])),
            Self::Number => seeded
                .pick(&[
                    json!(0.1),
                    json!(-2.5),
                    json!(3),
                    json!(4.0),
                    json!(1e-9),
                    json!(0.300_000_000_000_000_04),
                ])
                .clone(),
            Self::Boolean => json!(seeded.is_one_in(2)),
            Self::Text => {
                json!(*seeded.pick(&["", "3", "true", "null", "{}", "[1]", " a\"b\\n", "東京 🗼"]))
            }
            Self::Choice(choices) => json!(*seeded.pick(choices)),
            Self::List(kind) => (0..seeded.below(4))
                .map(|_| kind.instance(seeded))
                .collect(),
            Self::Record(record) => record.instance(seeded),
            Self::OrNull(_) if seeded.is_one_in(3) => Value::Null,
            Self::OrNull(kind) => kind.instance(seeded),
        }
    }

    /// Whether 3.0 is not a value of its own there.
    pub(super) fn is_integer(&self) -> bool {
        match self {
            Self::Integer => true,
            Self::OrNull(kind) => kind.is_integer(),
            _ => false,
        }
    }

    /// Whether null is a value of it.
    pub(super) fn takes_null(&self) -> bool {
        matches!(self, Self::OrNull(_))
    }
}
