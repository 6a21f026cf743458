//! The keys of a configuration file: which there are, where one stands, and which is near.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Where the setting `key`, with dots, of a section stands: a table, or the table so many in a
/// list of them. The beginning of the section when it is not set there, of the text without one.
pub(super) fn place_of(table: &DeTable<'_>, section: &str, index: usize, key: &str) -> usize {
    let Some((name, value)) = find(table, section) else {
        return 0;
    };
    let (mut at, mut table) = match value {
        DeValue::Table(table) => (name, table),
        DeValue::Array(items) => match items.get(index) {
            Some(item) => match item.get_ref() {
                DeValue::Table(table) => (item.span(), table),
                _ => return item.span().start,
            },
            None => return name.start,
        },
        _ => return name.start,
    };
    for part in key.split('.') {
        let Some((span, value)) = find(table, part) else {
            break;
        };
        at = span;
        match value {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    at.start
}

fn find<'a, 'b>(table: &'b DeTable<'a>, key: &str) -> Option<(Range<usize>, &'b DeValue<'a>)> {
    table
        .iter()
        .find(|(name, _)| name.get_ref().as_ref() == key)
        .map(|(name, value)| (name.span(), value.get_ref()))
}

/// The first key that no setting has, with the nearest that one has. A known table that is empty
/// may hold any key; the first table of a known list is what each of its tables may hold.
pub(super) fn unknown_key(
    table: &DeTable<'_>,
    known: &toml::Table,
    path: &str,
) -> Option<(Range<usize>, String)> {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let full = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        let found = match (known.get(name), value.get_ref()) {
            (None, _) => Some((key.span(), unknown_key_message(&full, name, known))),
            (Some(toml::Value::Table(inner)), DeValue::Table(table)) if !inner.is_empty() => {
                unknown_key(table, inner, &full)
            }
            (Some(toml::Value::Array(known)), DeValue::Array(items)) => match known.first() {
                Some(toml::Value::Table(inner)) => items
                    .iter()
                    .filter_map(|item| match item.get_ref() {
                        DeValue::Table(table) => unknown_key(table, inner, &full),
                        _ => None,
                    })
                    .next(),
                Some(_) | None => None,
            },
            (Some(_), _) => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn unknown_key_message(full: &str, name: &str, known: &toml::Table) -> String {
    let near = known
        .keys()
        .map(|key| (strsim::jaro_winkler(key, name), key))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.7);
    match near {
        Some((_, near)) => format!("unknown key \"{full}\"; did you mean \"{near}\"?"),
        None => {
            let mut names: Vec<&str> = known.keys().map(String::as_str).collect();
            names.sort_unstable();
            format!("unknown key \"{full}\"; known are: {}", names.join(", "))
        }
    }
}
