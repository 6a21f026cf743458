//! `harness ask`: asks an agent and prints its reply.
//!
//! Owns how a payload is read from the command line and how a reply is printed; both pass JSON as
//! the bytes that came, so that no number or order of keys changes on the way.

mod reply;

use std::io::{ErrorKind, Read};
use std::time::Duration;

use clap::Args;
use serde::de::IgnoredAny;
use worker_sdk::payload::JSON;
use worker_sdk::{Answer, Harness, Payload};

use super::error::CliError;
use super::{Server, output};
use crate::shutdown::Stops;

/// More than any harness takes; what is read from standard input is bounded.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// Ask an agent and print its reply
#[derive(Debug, Args)]
#[command(after_help = "\
A reply that is a string is printed without its quotes, anything else as the JSON it is.
Ctrl-C cancels the run. With --json standard output is one object, whatever happens:
{\"run_id\", \"attempt\", \"reply\"} or {\"error\": {\"code\", \"message\", ...}}.

Examples:
  harness ask echo hello
  harness ask count-words '{\"text\": \"one two three\"}' --timeout 2s
  harness ask echo - < request.json
  harness ask late-agent --wait --timeout 1m --meta tenant=blue")]
pub(super) struct Ask {
    /// The agent's name
    agent: String,

    /// The request, as JSON; what is not JSON is sent as a string. - reads standard input, less
    /// the line break at its end [default: null]
    #[arg(allow_negative_numbers = true)]
    payload: Option<String>,

    /// How long the run may take, waiting for a slot included, such as 500ms, 2s or 1m
    /// [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    timeout: Option<Duration>,

    /// Wait for a worker when none has offered the agent yet
    #[arg(long)]
    wait: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,

    /// A pair the agent can read; may be given more than once
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    #[command(flatten)]
    server: Server,
}

impl Ask {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let json = self.json;
        let payload = match self.payload.as_deref() {
            None => Payload::new(JSON, "null"),
            Some("-") => payload(&standard_input()?),
            Some(text) => payload(text),
        };
        let mut stops =
            Stops::listen().map_err(|error| CliError::io("cannot listen to signals", error))?;
        let answer = tokio::select! {
            answer = self.ask(payload) => answer?,
            // Dropping the ask hangs up, which cancels the run.
            signal = stops.next() => {
                let what = "the run is cancelled";
                return Err(CliError::Stopped { signal, what });
            }
        };
        reply::print(&answer, json)
    }

    async fn ask(self, payload: Payload) -> Result<Answer<Payload>, CliError> {
        let harness = self.connect().await?;
        let mut ask = harness.ask(self.agent, payload);
        if let Some(timeout) = self.timeout {
            ask = ask.timeout(timeout);
        }
        if self.wait {
            ask = ask.wait_for_agent();
        }
        for (key, value) in self.metadata {
            ask = ask.metadata(key, value);
        }
        ask.await.map_err(|error| self.server.explain(error))
    }

    /// Connects, for no longer than the whole may take.
    async fn connect(&self) -> Result<Harness, CliError> {
        let connecting = self.server.connect();
        match self.timeout {
            None => connecting.await,
            Some(timeout) => match tokio::time::timeout(timeout, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(CliError::Unreachable {
                    address: self.server.address().to_owned(),
                    source: None,
                }),
            },
        }
    }
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

fn timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(timeout) if timeout.is_zero() => Err("a timeout is longer than nothing".to_owned()),
        Ok(timeout) => Ok(timeout),
        Err(error) => Err(format!("{error}; write it as 500ms, 2s or 1m")),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("write it as KEY=VALUE".to_owned()),
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
    fn a_timeout_has_a_unit() {
        assert_eq!(timeout("1m 30s"), Ok(Duration::from_secs(90)));
        for bad in ["0s", "5", "soon"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pair_has_a_key() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err() && pair("=a").is_err());
    }
}
