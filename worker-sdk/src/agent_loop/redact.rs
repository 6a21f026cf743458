//! Secrets that must not be in a log.
//!
//! Owns what is hidden in arguments before they are logged, and in what a provider says of a request:
//! members whose names say that they are secret, and values that were registered, wherever they
//! stand. Pure.

use std::borrow::Cow;

use serde_json::Value;

use super::excerpt::head;

const HIDDEN: &str = "[redacted]";

/// Parts of names of members that hold secrets, in lower case and without separators.
const NAMES: [&str; 10] = [
    "password",
    "passwd",
    "secret",
    "apikey",
    "accesskey",
    "privatekey",
    "authorization",
    "credential",
    "cookie",
    "token",
];

/// Bytes of a text that are logged at most.
const LOGGED_BYTES: usize = 2_000;

/// A registered value shorter than this would hide half of every text.
const VALUE_BYTES_MIN: usize = 4;

/// So much of a value at its beginning is enough to hide it where a text may have been cut.
#[cfg(feature = "http-model")]
const BEGINNING_BYTES: usize = 8;

/// What is hidden.
#[derive(Default, Clone)]
pub(crate) struct Redactor {
    values: Vec<String>,
}

impl Redactor {
    /// Hides this value, wherever it stands.
    pub(crate) fn register(&mut self, value: &str) {
        if value.len() >= VALUE_BYTES_MIN {
            self.values.push(value.to_owned());
        }
    }

    /// Arguments as they may be logged.
    pub(crate) fn arguments(&self, arguments: &Value) -> String {
        let mut shown = arguments.clone();
        self.hide(&mut shown);
        let text = shown.to_string();
        head(&text, LOGGED_BYTES).to_owned()
    }

    /// A text as it may be logged.
    pub(crate) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut shown = Cow::Borrowed(text);
        for value in &self.values {
            if shown.contains(value.as_str()) {
                shown = Cow::Owned(shown.replace(value.as_str(), HIDDEN));
            }
        }
        shown
    }

    /// A text that may have been cut anywhere: the beginning of a value is hidden like all of it.
    #[cfg(feature = "http-model")]
    pub(crate) fn cut_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut shown = Cow::Borrowed(text);
        for value in &self.values {
            if shown.contains(head(value, BEGINNING_BYTES)) {
                shown = Cow::Owned(without_beginnings(&shown, value));
            }
        }
        shown
    }

    fn hide(&self, value: &mut Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members.iter_mut() {
                    if is_secret(name) {
                        *value = Value::String(HIDDEN.to_owned());
                    } else {
                        self.hide(value);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::String(text) => {
                if let Cow::Owned(shown) = self.text(text) {
                    *text = shown;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The text without what is the same as the beginning of a value.
#[cfg(feature = "http-model")]
fn without_beginnings(text: &str, value: &str) -> String {
    let beginning = head(value, BEGINNING_BYTES);
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(beginning) {
        shown.push_str(&rest[..at]);
        shown.push_str(HIDDEN);
        let pairs = rest[at..].chars().zip(value.chars());
        let same = pairs.take_while(|(a, b)| a == b);
        rest = &rest[at + same.map(|(a, _)| a.len_utf8()).sum::<usize>()..];
    }
    shown.push_str(rest);
    shown
}

/// Whether a name says that what it names is secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect();
    NAMES.iter().any(|secret| plain.contains(secret))
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor")
            .field("values", &self.values.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_by_name_and_by_value() {
        let mut redactor = Redactor::default();
        redactor.register("hunter22");
        redactor.register("ab");
        let arguments = json!({
            "query": "abc hunter22 def",
            "API-Key": "k1",
            "auth": {"access_token": {"a": 1}, "user": "me"},
            "headers": [{"Authorization": "Bearer x"}],
            "n": 7,
        });
        let shown = redactor.arguments(&arguments);
        for secret in ["hunter22", "k1", "Bearer", "\"a\":1"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        for kept in ["abc", "def", "me", "7"] {
            assert!(shown.contains(kept), "{shown}");
        }
        assert_eq!(redactor.text("x hunter22"), "x [redacted]");
        assert!(!format!("{redactor:?}").contains("hunter22"));
    }

    #[test]
    fn what_is_logged_of_arguments_is_bounded() {
        let shown = Redactor::default().arguments(&json!({"text": "é".repeat(10_000)}));
        assert!(shown.len() <= LOGGED_BYTES);
    }
}
