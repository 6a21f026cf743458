//! What a schema says of one value: which types it takes there, and which schemas its members and
//! items have.
//!
//! Owns reading `$ref`, `allOf`, `anyOf`, `oneOf`, `type`, `const` and `enum` far enough for that.
//! A union says something about members only where a single branch can be meant.

use serde_json::{Map, Value};

/// How many `$ref` and branches are followed into each other; a longer way ends in "anything".
const DEPTH_MAX: u32 = 32;

/// A set of JSON types. An integer is a number that some schemas ask for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NULL: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    pub(super) const NUMBER: Self = Self(8);
    pub(super) const STRING: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    pub(super) const OBJECT: Self = Self(64);
    const NONE: Self = Self(0);
    const ALL: Self = Self(127);

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn named(name: &str) -> Self {
        match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            // A number takes integers too.
            "number" => Self::NUMBER.or(Self::INTEGER),
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::NONE,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

/// What a schema says of a value.
pub(super) struct Shape<'s> {
    pub(super) types: Types,
    /// The schemas that apply, each by its own keywords.
    schemas: Vec<&'s Map<String, Value>>,
}

impl<'s> Shape<'s> {
    pub(super) fn of(document: &'s Value, schema: &'s Value, value: &Value) -> Self {
        Self::within(document, schema, value, 0)
    }

    fn within(document: &'s Value, schema: &'s Value, value: &Value, depth: u32) -> Self {
        let mut shape = Self {
            types: Types::ALL,
            schemas: Vec::new(),
        };
        let Value::Object(keywords) = schema else {
            return shape;
        };
        if depth > DEPTH_MAX {
            return shape;
        }
        shape.schemas.push(keywords);
        shape.types = own_types(keywords);
        let target = keywords.get("$ref").and_then(Value::as_str);
        if let Some(target) = target.and_then(|target| resolved(document, target)) {
            shape.narrow(Self::within(document, target, value, depth + 1));
        }
        for part in branches(keywords, "allOf") {
            shape.narrow(Self::within(document, part, value, depth + 1));
        }
        for union in ["anyOf", "oneOf"] {
            if keywords.contains_key(union) {
                let parts = branches(keywords, union)
                    .map(|part| Self::within(document, part, value, depth + 1));
                shape.narrow(Self::union(parts, value));
            }
        }
        shape
    }

    fn narrow(&mut self, other: Self) {
        self.types = self.types.and(other.types);
        self.schemas.extend(other.schemas);
    }

    fn union(parts: impl Iterator<Item = Self>, value: &Value) -> Self {
        let mut types = Types::NONE;
        let mut meant = Vec::new();
        for part in parts {
            types = types.or(part.types);
            if part.may_be(value) {
                meant.push(part);
            }
        }
        let schemas = match meant.as_mut_slice() {
            [only] => std::mem::take(&mut only.schemas),
            _ => Vec::new(),
        };
        Self { types, schemas }
    }

    /// Whether a value can be meant for this branch: its type, the members that tell it from
    /// others, the members it must have.
    fn may_be(&self, value: &Value) -> bool {
        if !self.types.has(Types::of_value(value)) {
            return false;
        }
        let Value::Object(members) = value else {
            return true;
        };
        let names_all = self
            .schemas
            .iter()
            .flat_map(|schema| strings(schema.get("required")))
            .all(|name| members.contains_key(name));
        names_all && members.iter().all(|(name, value)| self.takes(name, value))
    }

    fn takes(&self, name: &str, value: &Value) -> bool {
        let Some(schema) = self.member(name) else {
            return !self
                .schemas
                .iter()
                .any(|schema| schema.get("additionalProperties") == Some(&Value::Bool(false)));
        };
        let fixed = schema.get("const").is_none_or(|wanted| wanted == value);
        let listed = schema.get("enum").and_then(Value::as_array);
        fixed && listed.is_none_or(|wanted| wanted.contains(value))
    }

    /// The schema of a member, where one is said.
    pub(super) fn member(&self, name: &str) -> Option<&'s Value> {
        let declared = self
            .schemas
            .iter()
            .find_map(|schema| schema.get("properties")?.get(name));
        declared.or_else(|| {
            // Which pattern a name matches is the validator's to say, so then nothing is said here.
            let of_others = self.schemas.iter().find_map(|schema| {
                let is_plain = !schema.contains_key("patternProperties");
                schema.get("additionalProperties").filter(|_| is_plain)
            });
            of_others.filter(|schema| schema.is_object())
        })
    }

    /// Whether a member is declared and may be left out.
    pub(super) fn is_optional(&self, name: &str) -> bool {
        let is_declared = self.schemas.iter().any(|schema| {
            let properties = schema.get("properties");
            properties.is_some_and(|properties| properties.get(name).is_some())
        });
        let mut required = self
            .schemas
            .iter()
            .flat_map(|schema| strings(schema.get("required")));
        is_declared && !required.any(|required| required == name)
    }

    /// The schema of an item, where one is said.
    pub(super) fn item(&self, place: usize) -> Option<&'s Value> {
        self.schemas.iter().find_map(|schema| {
            let prefix = schema.get("prefixItems").and_then(Value::as_array);
            match prefix.and_then(|prefix| prefix.get(place)) {
                Some(item) => Some(item),
                None => schema.get("items"),
            }
        })
    }
}

fn own_types(keywords: &Map<String, Value>) -> Types {
    let named = match keywords.get("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(names @ Value::Array(_)) => strings(Some(names))
            .map(Types::named)
            .fold(Types::NONE, Types::or),
        _ => Types::ALL,
    };
    let fixed = keywords.get("const").map(Types::of_value);
    let listed = keywords
        .get("enum")
        .and_then(Value::as_array)
        .map(|listed| {
            listed
                .iter()
                .map(Types::of_value)
                .fold(Types::NONE, Types::or)
        });
    [fixed, listed]
        .into_iter()
        .flatten()
        .fold(named, Types::and)
}

fn resolved<'s>(document: &'s Value, target: &str) -> Option<&'s Value> {
    document.pointer(target.strip_prefix('#')?)
}

fn branches<'s>(
    keywords: &'s Map<String, Value>,
    keyword: &str,
) -> impl Iterator<Item = &'s Value> {
    keywords
        .get(keyword)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}
