//! `harness ask`: asks an agent and prints its reply.
//!
//! Owns the grammar and the choice between the three ways of asking: once, with what happens
//! meanwhile ([`stream`]), or many requests on one call ([`many`]).

pub(super) mod input;
mod many;
pub(super) mod options;
mod reply;
mod stream;

use clap::Args;
use worker_sdk::Harness;

use super::error::CliError;
use super::output::Form;
use super::{PATIENCE, Server};
use crate::shutdown::Stops;
use options::{Applied, Options};

/// Ask an agent and print its reply
#[derive(Debug, Args)]
#[command(after_help = "\
A reply that is a string is printed without its quotes, anything else as the JSON it is.
Ctrl-C cancels the run. With --json standard output is one object, whatever happens:
{\"run_id\", \"attempt\", \"reply\"} or {\"error\": {\"code\", \"message\", ...}}.

--stream prints each piece of output on a line of its own as it comes, and the reply last;
progress, log lines and further attempts are told on standard error. With --json each is an
object on a line: {\"attempt_started\"}, {\"output\"}, {\"progress\"}, {\"log\"}, {\"gap\"}, and last the
reply or the error.

--many reads requests from standard input, one JSON value a line, and writes each answer as it
comes: {\"line\", \"run_id\", \"attempt\", \"reply\"} or {\"line\", ..., \"error\"}. The exit code is 0 if
all were answered with a reply, 4 if a deadline passed, 3 if the harness was lost, else 1.

Examples:
  harness ask echo hello
  harness ask count-words '{\"text\": \"one two three\"}' --timeout 2s
  harness ask echo - < request.json
  harness ask late-agent --wait --timeout 1m --meta tenant=blue
  harness ask summarize --select gpu=a100 --attempts 3 --attempt-timeout 10s
  harness ask write 'a poem' --stream
  harness ask echo --many < requests.jsonl > answers.jsonl")]
pub(super) struct Ask {
    /// The agent's name
    agent: String,

    /// The request, as JSON; what is not JSON is sent as a string. - reads standard input, less
    /// the line break at its end [default: null]
    #[arg(allow_negative_numbers = true, conflicts_with = "many")]
    payload: Option<String>,

    /// Print output as it comes, and the reply last
    #[arg(long, conflicts_with = "many")]
    stream: bool,

    /// Ask with each line of standard input
    #[arg(long)]
    many: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    server: Server,
}

impl Ask {
    pub(super) fn form(&self) -> Form {
        match (self.json, self.stream || self.many) {
            (false, _) => Form::Text,
            (true, false) => Form::Json,
            (true, true) => Form::JsonLines,
        }
    }

    pub(super) async fn run(self) -> Result<(), CliError> {
        let options = self.options.clone().applied()?;
        let payload = input::request(self.payload.as_deref())?;
        let mut stops =
            Stops::listen().map_err(|error| CliError::io("cannot listen to signals", error))?;
        let asking = async {
            let patience = self.options.timeout.unwrap_or(PATIENCE).min(PATIENCE);
            let harness = self.server.connect(patience).await?;
            if self.many {
                return self.many(&harness, &options).await;
            }
            let explain = |error| self.server.explain(error);
            if self.stream {
                let ask = harness.ask_stream(&self.agent, payload);
                let events = options.to(ask).await.map_err(explain)?;
                return stream::print(events, self.json, explain).await;
            }
            let ask = harness.ask(&self.agent, payload);
            let answer = options.to(ask).await.map_err(explain)?;
            reply::print(&answer, self.json)
        };
        tokio::select! {
            done = asking => done,
            // Dropping the ask hangs up, which cancels the run.
            signal = stops.next() => {
                let what = if self.many { "the open runs are cancelled" } else { "the run is cancelled" };
                Err(CliError::Stopped { signal, what })
            }
        }
    }

    async fn many(&self, harness: &Harness, options: &Applied) -> Result<(), CliError> {
        let call = self.server.within(PATIENCE, harness.ask_many()).await?;
        let ask = |payload| options.to(call.ask(&self.agent, payload));
        let tally = many::run(call.window(), ask).await?;
        if !self.json {
            tally.tell();
        }
        tally.result()
    }
}
