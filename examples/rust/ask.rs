//! Asking from code: a typed request and reply, a timeout, and what can go wrong.
//!
//! Asks the agent of `count_words.rs`; the text is the command line.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use worker_sdk::{Answer, Error, ErrorKind, Harness};

#[derive(Serialize)]
struct Question {
    text: String,
}

#[derive(Deserialize)]
struct Counted {
    words: usize,
}

#[tokio::main]
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the answer is what this program is for"
)]
async fn main() -> Result<(), Error> {
    let text = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    // HARNESS_ADDRESS, else 127.0.0.1:7070. One connection serves any number of asks.
    let harness = Harness::connect_default().await?;

    // The harness keeps this timeout, whatever the agent does. Dropping the future, for example in
    // a `select!`, hangs up, and the agent is stopped.
    let asked: Result<Answer<Counted>, _> = harness
        .ask("count-words", &Question { text })
        .timeout(Duration::from_secs(2))
        .await;
    let error = match asked {
        Ok(answer) => {
            println!("{} words (run {})", answer.value.words, answer.run_id);
            return Ok(());
        }
        Err(error) => error,
    };
    // The kind says whose turn it is; the message is a line for a person.
    let advice = match error.kind() {
        ErrorKind::UnknownAgent => "start it with: cargo run --bin count-words",
        ErrorKind::DeadlineExceeded => "the message says where the time went",
        ErrorKind::AgentError => "the agent itself answered with this error",
        _ if error.retryable() => "asking again can help",
        _ => "asking the same again cannot help",
    };
    eprintln!("{}: {advice}", error.code_name());
    // Returned from `main` it prints its message and what caused it.
    Err(error)
}
