//! What a worker says of itself in its hello.
//!
//! Owns the facts and their check against the protocol's limits, so that a mistake is told before
//! anything is dialled.

use std::collections::HashMap;

use bytes::Bytes;

use crate::agent::Agent;
use crate::error::{Error, ErrorKind};
use crate::payload::Describe;

const NAME_CHARS_MAX: usize = 63;
const LABELS_MAX: usize = 32;
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// The protocol's default of the largest frame, said in full.
pub(super) const RECEIVE_BYTES: u64 = 4 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) worker_id: String,
    pub(crate) worker_name: String,
    pub(crate) host: String,
    pub(crate) labels: HashMap<String, String>,
    pub(crate) agent: String,
    pub(crate) version: String,
    pub(crate) description: String,
    /// JSON; empty takes anything.
    pub(crate) request_schema: Bytes,
    pub(crate) reply_schema: Bytes,
    pub(crate) namespace: String,
    pub(crate) max_receive_bytes: u64,
}

impl Profile {
    pub(super) fn new() -> Self {
        let host = nix::unistd::gethostname()
            .ok()
            .and_then(|host| host.into_string().ok());
        Self {
            worker_id: uuid::Uuid::new_v4().to_string(),
            worker_name: String::new(),
            host: host.unwrap_or_default(),
            labels: HashMap::new(),
            agent: String::new(),
            version: String::new(),
            description: String::new(),
            request_schema: Bytes::new(),
            reply_schema: Bytes::new(),
            namespace: String::new(),
            max_receive_bytes: RECEIVE_BYTES,
        }
    }

    /// Derives the schemas of an agent's request and reply.
    pub(super) fn describe<A: Agent>(&mut self) {
        let bytes = |schema: serde_json::Value| Bytes::from(schema.to_string());
        self.request_schema = A::Request::request_schema().map_or_else(Bytes::new, bytes);
        self.reply_schema = A::Reply::reply_schema().map_or_else(Bytes::new, bytes);
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.agent.is_empty() {
            return Err(invalid(
                "the agent has no name; set one with name(..), or HARNESS_AGENT",
            ));
        }
        if !is_agent_name(&self.agent) {
            return Err(invalid(format!(
                "{:?} is no agent name: 1 to {NAME_CHARS_MAX} of a-z, 0-9, '.', '_' and '-', \
                 starting and ending with a letter or digit",
                self.agent
            )));
        }
        if self.labels.len() > LABELS_MAX {
            let count = self.labels.len();
            return Err(invalid(format!(
                "a worker has at most {LABELS_MAX} labels, not {count}"
            )));
        }
        for (what, schema) in [
            ("request", &self.request_schema),
            ("reply", &self.reply_schema),
        ] {
            if schema.len() > SCHEMA_BYTES_MAX {
                return Err(invalid(format!(
                    "the derived {what} schema has {} bytes and may have {SCHEMA_BYTES_MAX}; \
                     use a simpler type, or Payload raw",
                    schema.len()
                )));
            }
        }
        Ok(())
    }
}

fn is_agent_name(name: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| edge(byte) || matches!(byte, b'.' | b'_' | b'-');
    match name.as_bytes() {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => {
            name.len() <= NAME_CHARS_MAX
                && edge(*first)
                && edge(*last)
                && middle.iter().all(|byte| inner(*byte))
        }
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidWorker, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_names_follow_the_protocol() {
        for name in ["a", "0", "echo", "a.b_c-d", &"x".repeat(63)] {
            assert!(is_agent_name(name), "{name}");
        }
        for name in ["", "-", "-a", "a-", "A", "a b", "ä", &"x".repeat(64)] {
            assert!(!is_agent_name(name), "{name}");
        }
    }
}
