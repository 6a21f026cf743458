//! What is asked: from the command line, or from standard input whole or line by line.
//!
//! JSON passes as the bytes that came, so that no number or order of keys changes on the way. What is
//! read is bounded.

use std::io::{ErrorKind, Read};

use serde::de::IgnoredAny;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Stdin};
use worker_sdk::Payload;
use worker_sdk::payload::JSON;

use crate::cli::error::CliError;
use crate::cli::output;

/// More than any harness takes.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// What the argument says; without one null.
pub(in crate::cli) fn request(argument: Option<&str>) -> Result<Payload, CliError> {
    Ok(match argument {
        None => Payload::new(JSON, "null"),
        Some("-") => payload(&standard_input()?),
        Some(text) => payload(text),
    })
}

/// JSON as it is, anything else as a JSON string.
fn payload(text: &str) -> Payload {
    let why = match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => return Payload::new(JSON, text.to_owned()),
        Err(why) => why,
    };
    if text.trim_start().starts_with(['{', '[', '"']) {
        output::note(&format!(
            "note: sent as a string, for it is not JSON: {why}"
        ));
    }
    Payload::new(JSON, serde_json::Value::from(text).to_string())
}

fn standard_input() -> Result<String, CliError> {
    let mut text = String::new();
    let mut stdin = std::io::stdin().lock().take(INPUT_BYTES_MAX + 1);
    match stdin.read_to_string(&mut text) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let message = "standard input is not UTF-8 text, which JSON is";
            return Err(CliError::Usage(message.to_owned()));
        }
        Err(error) => return Err(CliError::io("cannot read standard input", error)),
    }
    if text.len() as u64 > INPUT_BYTES_MAX {
        let mib = INPUT_BYTES_MAX >> 20;
        return Err(CliError::Usage(format!(
            "standard input has more than {mib} MiB"
        )));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

/// The lines of standard input. Empty ones are counted and passed over.
pub(super) struct Lines {
    input: BufReader<Stdin>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(super) fn of_standard_input() -> Self {
        Self {
            input: BufReader::new(tokio::io::stdin()),
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line with its number, as a payload or why it is none; None at the end. Can be
    /// dropped and called again.
    pub(super) async fn next(
        &mut self,
    ) -> Result<Option<(u64, Result<Payload, String>)>, CliError> {
        loop {
            let room = (INPUT_BYTES_MAX + 1).saturating_sub(self.line.len() as u64);
            let mut input = (&mut self.input).take(room);
            let read = input.read_until(b'\n', &mut self.line).await;
            let read = read.map_err(|error| CliError::io("cannot read standard input", error))?;
            if read == 0 && self.line.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            if self.line.len() as u64 > INPUT_BYTES_MAX {
                let (number, mib) = (self.number, INPUT_BYTES_MAX >> 20);
                let message = format!("line {number} has more than {mib} MiB");
                return Err(CliError::Usage(message));
            }
            let line = std::mem::take(&mut self.line);
            if !line.trim_ascii().is_empty() {
                return Ok(Some((self.number, json_line(line))));
            }
        }
    }
}

fn json_line(mut line: Vec<u8>) -> Result<Payload, String> {
    line.truncate(line.trim_ascii_end().len());
    match serde_json::from_slice::<IgnoredAny>(&line) {
        Ok(_) => Ok(Payload::new(JSON, line)),
        Err(why) => Err(format!("the line is not JSON: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_json_is_sent_as_a_string() {
        for (text, sent) in [
            ("hello", "\"hello\""),
            ("\"hello\"", "\"hello\""),
            (
                "{\"b\": 1.50, \"a\": 12345678901234567890123}",
                "{\"b\": 1.50, \"a\": 12345678901234567890123}",
            ),
            ("-5", "-5"),
            ("{oops", "\"{oops\""),
            ("", "\"\""),
        ] {
            assert_eq!(payload(text).data(), sent.as_bytes(), "{text}");
        }
    }

    #[test]
    fn a_line_is_json_or_nothing() {
        let sent = json_line(b"{\"a\": 1.50}\r\n".to_vec()).expect("JSON");
        assert_eq!(sent.data(), b"{\"a\": 1.50}");
        for bad in [&b"hello\n"[..], b"{} {}\n", b"\xff\n"] {
            assert!(json_line(bad.to_vec()).is_err(), "{bad:?}");
        }
    }
}
