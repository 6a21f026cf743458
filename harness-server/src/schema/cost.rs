//! What a schema costs before any payload is there: how large it is with every `$ref` written
//! out, how deep, whether it is recursive.
//!
//! Each figure is an upper bound. What cannot be followed counts as recursive, so that it is
//! never held against a payload without a limit on time.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// How much more a schema with `unevaluatedProperties` or `unevaluatedItems` costs than what is
/// in it: those keywords hold the parts against the value again to learn what they have seen.
const UNEVALUATED_FACTOR: u64 = 4;

/// How many bytes of a pattern, its counted repetitions written out, cost as much as one keyword.
const PATTERN_BYTES_A_NODE: u64 = 8;

/// The cost of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// JSON values in it when every `$ref` is written out, one that leads back counting as one.
    pub(super) nodes: u64,
    /// Keywords held against each value at most: nodes, more for unevaluated keywords.
    pub(super) work: u64,
    /// What patterns cost at each byte at most, in keywords.
    pub(super) byte_work: u64,
    /// Schemas within schemas, at most.
    pub(super) depth: u64,
    /// Nodes that are gone through when it is compiled, for its unevaluated keywords.
    pub(super) compile: u64,
    /// Patterns in its text.
    pub(super) patterns: usize,
    /// Whether a `$ref` leads back to where it stands, or cannot be followed.
    pub(super) recursive: bool,
}

/// What is known of one schema in the document.
#[derive(Clone, Copy)]
enum Known {
    /// It is being looked at, so whoever comes to it again is in a circle.
    Open,
    Done(Part),
}

#[derive(Clone, Copy, Default)]
struct Part {
    nodes: u64,
    work: u64,
    byte_work: u64,
    depth: u64,
}

struct Walk<'a> {
    /// By name, the schemas with that anchor and the resource each is in.
    anchors: HashMap<&'a str, Vec<(&'a Value, &'a Value)>>,
    /// By address: the document does not move while it is looked at.
    known: HashMap<*const Value, Known>,
    compile: u64,
    patterns: usize,
    recursive: bool,
}

/// The cost of a schema.
pub(super) fn of(schema: &Value) -> Cost {
    let mut walk = Walk {
        anchors: HashMap::new(),
        known: HashMap::new(),
        compile: 0,
        patterns: 0,
        recursive: false,
    };
    walk.find_anchors(schema, schema);
    let part = walk.schema(schema, schema);
    Cost {
        nodes: part.nodes,
        work: part.work,
        byte_work: part.byte_work,
        depth: part.depth,
        compile: walk.compile,
        patterns: walk.patterns,
        recursive: walk.recursive,
    }
}

impl Part {
    fn one() -> Self {
        Self {
            nodes: 1,
            work: 1,
            byte_work: 0,
            depth: 1,
        }
    }

    fn add(&mut self, other: Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.work = self.work.saturating_add(other.work);
        self.byte_work = self.byte_work.saturating_add(other.byte_work);
        self.depth = self.depth.max(other.depth.saturating_add(1));
    }

    /// Plain values: they have no depth of their own.
    fn add_values(&mut self, values: u64) {
        self.nodes = self.nodes.saturating_add(values);
        self.work = self.work.saturating_add(values);
    }

    fn add_pattern(&mut self, pattern: &str) {
        self.add_values(1);
        self.byte_work = self.byte_work.saturating_add(pattern_work(pattern));
    }
}

impl<'a> Walk<'a> {
    fn find_anchors(&mut self, value: &'a Value, base: &'a Value) {
        match value {
            Value::Object(members) => {
                let base = base_of(value, members, base);
                for (key, member) in members {
                    match (key.as_str(), member) {
                        ("$anchor" | "$dynamicAnchor", Value::String(name)) => {
                            self.anchors.entry(name).or_default().push((value, base));
                        }
                        ("pattern", Value::String(_)) => self.patterns += 1,
                        ("patternProperties", Value::Object(by_pattern)) => {
                            self.patterns += by_pattern.len();
                        }
                        _ => {}
                    }
                    self.find_anchors(member, base);
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.find_anchors(item, base);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn schema(&mut self, value: &'a Value, base: &'a Value) -> Part {
        let members = match value {
            Value::Object(members) => members,
            Value::Array(items) => {
                let mut part = Part::one();
                for item in items {
                    part.add(self.schema(item, base));
                }
                return part;
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Part::one();
            }
        };
        match self.known.get(&std::ptr::from_ref(value)) {
            Some(Known::Done(part)) => return *part,
            Some(Known::Open) => {
                self.recursive = true;
                return Part::one();
            }
            None => {}
        }
        self.known.insert(value, Known::Open);
        let base = base_of(value, members, base);
        let mut part = Part::one();
        for (key, member) in members {
            self.keyword(key, member, base, &mut part);
        }
        if members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems")
        {
            self.compile = self.compile.saturating_add(part.nodes);
            part.work = part.work.saturating_mul(UNEVALUATED_FACTOR);
            part.byte_work = part.byte_work.saturating_mul(UNEVALUATED_FACTOR);
        }
        self.known.insert(value, Known::Done(part));
        part
    }

    fn keyword(&mut self, key: &str, member: &'a Value, base: &'a Value, part: &mut Part) {
        match (key, member) {
            // They count where they are referred to.
            ("$defs" | "definitions", _) => {}
            ("$ref", Value::String(target)) => part.add(self.reference(target, base)),
            ("$dynamicRef", Value::String(target)) => {
                part.add(self.reference(target, base));
                // Any schema of that name may be meant.
                let name = target.trim_start_matches('#');
                for (target, base) in self.anchors.get(name).cloned().unwrap_or_default() {
                    part.add(self.schema(target, base));
                }
            }
            (
                "properties" | "patternProperties" | "dependentSchemas" | "dependencies",
                Value::Object(by_name),
            ) => {
                for (name, schema) in by_name {
                    if key == "patternProperties" {
                        part.add_pattern(name);
                    }
                    part.add(self.schema(schema, base));
                }
            }
            ("pattern", Value::String(pattern)) => part.add_pattern(pattern),
            ("enum" | "const" | "default" | "examples", _) => part.add_values(values_in(member)),
            (_, Value::Array(items)) => {
                for item in items {
                    part.add(self.schema(item, base));
                }
            }
            (_, _) => part.add(self.schema(member, base)),
        }
    }

    fn reference(&mut self, target: &str, base: &'a Value) -> Part {
        let Some((target, base)) = self.find(target, base) else {
            self.recursive = true;
            return Part::one();
        };
        self.schema(target, base)
    }

    /// What a reference means, and the resource that is in.
    fn find(&self, target: &str, base: &'a Value) -> Option<(&'a Value, &'a Value)> {
        let fragment = percent_decoded(target.strip_prefix('#')?)?;
        if fragment.is_empty() {
            return Some((base, base));
        }
        if !fragment.starts_with('/') {
            let named = self.anchors.get(&*fragment)?;
            let mut here = named.iter().filter(|(_, of)| std::ptr::eq(*of, base));
            return here.next().copied();
        }
        let (mut found, mut within) = (base, base);
        for token in fragment.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            found = match found {
                Value::Object(members) => members.get(&token)?,
                Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
            };
            if let Value::Object(members) = found {
                within = base_of(found, members, within);
            }
        }
        Some((found, within))
    }
}

/// The resource that references in this schema are relative to.
fn base_of<'a>(value: &'a Value, members: &Map<String, Value>, base: &'a Value) -> &'a Value {
    match members.get("$id") {
        Some(Value::String(_)) => value,
        _ => base,
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(rest.next()?).to_digit(16)?;
        let low = char::from(rest.next()?).to_digit(16)?;
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// How many JSON values are in a value.
fn values_in(value: &Value) -> u64 {
    match value {
        Value::Object(members) => 1 + members.values().map(values_in).sum::<u64>(),
        Value::Array(items) => 1 + items.iter().map(values_in).sum::<u64>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// What a pattern costs at each byte, in nodes: its length, counted repetitions multiplied.
fn pattern_work(pattern: &str) -> u64 {
    let mut times: u64 = 1;
    for counted in pattern.split('{').skip(1) {
        let numbers = counted.split('}').next().unwrap_or_default();
        let most = numbers
            .split(',')
            .filter_map(|number| number.trim().parse().ok())
            .max();
        times = times.saturating_mul(most.unwrap_or(1).max(1));
    }
    (pattern.len() as u64).saturating_mul(times) / PATTERN_BYTES_A_NODE + 1
}
