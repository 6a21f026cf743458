//! What is printed: data to standard output, everything else to standard error.
//!
//! The one module that writes to either. A reader that has gone (`harness agents | head -1`) has
//! all it wanted and is no failure. Text of others has its control characters escaped, so that a
//! worker cannot write to the terminal of whoever lists it.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::error::CliError;
use crate::telemetry::colours;

/// What standard output is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Text for a person.
    Text,
    /// One JSON value, errors included.
    Json,
    /// JSON values, one a line, errors included.
    JsonLines,
}

/// Writes bytes to standard output as they are; false when its reader has gone.
pub(super) fn offer(data: &[u8]) -> Result<bool, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(data).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CliError::io("cannot write to standard output", error)),
        Ok(()) => Ok(true),
    }
}

/// Writes bytes to standard output as they are.
pub(super) fn bytes(data: &[u8]) -> Result<(), CliError> {
    offer(data).map(drop)
}

/// Writes a line to standard output.
pub(super) fn line(text: &str) -> Result<(), CliError> {
    bytes(format!("{text}\n").as_bytes())
}

/// Writes a value to standard output, as JSON a person can read.
pub(super) fn json(value: &impl serde::Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::io("cannot write JSON", error.into()))?;
    line(&text)
}

/// Writes columns to standard output, as wide as they must be.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), CliError> {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().chain([&head]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in [&head].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    bytes(text.as_bytes())
}

/// Tells a person something that is no data.
pub(super) fn note(text: &str) {
    to_stderr(text);
}

/// Tells a mistake on the command line.
pub(super) fn mistake(text: &str) {
    to_stderr(&format!("{} {text}", error_prefix()));
}

/// Prints help or the version where the parser wants it.
pub(super) fn help(error: &clap::Error) {
    // A reader that has gone has all it wanted.
    let _ = error.print();
}

/// Tells why a command failed: one line, and every cause when `verbose`. In a JSON form as an object
/// on standard output, which is then there whatever happened.
pub(super) fn failure(error: &CliError, form: Form, verbose: bool) {
    if matches!(error, CliError::Told(_)) {
        return;
    }
    let value = json!({ "error": error_value(error) });
    let told = match form {
        Form::Text => false,
        Form::Json => json(&value).is_ok(),
        Form::JsonLines => line(&value.to_string()).is_ok(),
    };
    if told {
        return;
    }
    let mut text = format!("{} {}", error_prefix(), printable(&error.line()));
    if verbose {
        for cause in causes(error) {
            text.push_str(&format!("\n  caused by: {}", printable(&cause)));
        }
        if let CliError::Sdk(error) = error {
            text.push_str(&format!("\n  code: {}", error.code_name()));
            if !error.run_id().is_empty() {
                let (run, attempt) = (printable(error.run_id()), error.attempt());
                text.push_str(&format!("\n  run: {run}, attempt {attempt}"));
            }
        }
    }
    to_stderr(&text);
}

fn error_value(error: &CliError) -> Value {
    if let CliError::Sdk(sdk) = error {
        return json!(sdk);
    }
    let mut value = json!({ "code": error.code(), "message": error.line() });
    let causes = causes(error);
    if !causes.is_empty() {
        value["causes"] = causes.into();
    }
    value
}

fn causes(error: &CliError) -> Vec<String> {
    std::iter::successors(error.cause(), |&cause| cause.source())
        .map(ToString::to_string)
        .collect()
}

fn error_prefix() -> &'static str {
    if colours() {
        "\u{1b}[1;31merror:\u{1b}[0m"
    } else {
        "error:"
    }
}

fn to_stderr(text: &str) {
    // There is nobody left to tell.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The text with its control characters escaped.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().flat_map(|c| {
        let (kept, escaped) = if c.is_control() {
            (None, Some(c.escape_default()))
        } else {
            (Some(c), None)
        };
        kept.into_iter().chain(escaped.into_iter().flatten())
    });
    Cow::Owned(escaped.collect())
}

/// A duration as a person reads it.
pub(super) fn rounded(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_steer_the_terminal() {
        assert_eq!(printable("plain, äöü"), "plain, äöü");
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
    }

    #[test]
    fn durations_are_as_exact_as_they_matter() {
        let told = [0.04, 3.26, 75.0, 600.0, 90_000.0].map(|s| rounded(Duration::from_secs_f64(s)));
        assert_eq!(told, ["0.0 s", "3.3 s", "75 s", "10 min", "25 h"]);
    }
}
