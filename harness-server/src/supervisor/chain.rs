//! An error with its causes, in one line.

use std::error::Error;

/// The error and what caused it. A cause that the text already ends with, as some crates write their
/// errors, is not said again.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
