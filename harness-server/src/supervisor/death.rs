//! What whoever waits for a request is told when the process that had it has died.

use crate::envelope::{Code, Failure, Payload};
use crate::pool::Exit;

/// The failure of a request in a worker of this name; `last_lines` are what that wrote to standard
/// error while it worked on it.
pub(super) fn failure(name: &str, exit: Exit, last_lines: &[String]) -> Failure {
    let mut message = format!("worker \"{name}\" died: {exit}");
    if let Some(last) = last_lines.iter().rfind(|line| !line.trim().is_empty()) {
        message.push_str(&format!("; its last line on standard error: {last}"));
    }
    let details = serde_json::json!({
        "worker": name,
        "exit": exit.to_string(),
        "stderr": last_lines,
    });
    Failure::new(Code::WorkerLost, message).with_details(Payload::json(&details))
}
