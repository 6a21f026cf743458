//! The rules of a hello: what makes one acceptable, and what is told to whoever sent another.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::Limits;
use crate::dispatch::{Offer, WorkerInfo};
use crate::envelope::beginning;
use crate::ids::{AgentKey, Delivery, Lease, WorkerId, is_valid_name};
use crate::slot::{Level, Refusal};

/// The protocol version this server speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// What a worker can receive when its hello does not say, in bytes.
const DEFAULT_RECEIVE_BYTES: u64 = 4 * 1024 * 1024;

/// How much of a malformed field an error repeats, in bytes.
const SHOWN_BYTES: usize = 80;

/// How long a text for people may be, in bytes.
const TEXT_BYTES: usize = 1024;

/// A hello as it came.
#[derive(Debug, Default)]
pub struct Hello {
    /// `protocol_version`.
    pub protocol_version: u32,
    /// `worker.worker_id`.
    pub worker_id: String,
    /// `worker`, the rest.
    pub info: WorkerInfo,
    /// `agent.name`.
    pub agent: String,
    /// `namespace`.
    pub namespace: String,
    /// `agent.version`.
    pub version: String,
    /// `agent.description`.
    pub description: String,
    /// `agent.request_schema`.
    pub request_schema: Bytes,
    /// `agent.reply_schema`.
    pub reply_schema: Bytes,
    /// `agent.labels`.
    pub labels: BTreeMap<String, String>,
    /// `heartbeats`.
    pub heartbeats: bool,
    /// `max_receive_bytes`.
    pub max_receive_bytes: u64,
    /// `previous`.
    pub previous: Previous,
}

/// What became of the call before.
#[derive(Debug, Default)]
pub enum Previous {
    /// There was none to speak of.
    #[default]
    None,
    /// The work the harness cancelled has stopped.
    Released(Delivery, Lease),
    /// It broke and the work goes on.
    Resume(Delivery, Lease),
}

impl Hello {
    /// How much of the protocol the worker follows.
    #[must_use]
    pub fn level(&self) -> Level {
        if self.heartbeats {
            Level::Full
        } else {
            Level::Minimal
        }
    }

    /// Checks everything but the schemas, which take time.
    ///
    /// # Errors
    /// What to change.
    pub fn accept(self, limits: &Limits, peer: &Arc<str>) -> Result<(Offer, Previous), Refusal> {
        if self.protocol_version != PROTOCOL_VERSION {
            return Err(Refusal::UnsupportedProtocol(self.protocol_version));
        }
        let worker = self.worker_id.parse().map(WorkerId).map_err(|_| {
            Refusal::Invalid(format!(
                "worker.worker_id must be a UUID made when the process starts, got \"{}\"",
                shown(&self.worker_id)
            ))
        })?;
        self.check_texts(limits)?;
        let level = self.level();
        let mut info = self.info;
        if info.name.is_empty() {
            let host = if info.host.is_empty() {
                "worker"
            } else {
                &info.host
            };
            info.name = format!("{host}-{}", info.pid);
        }
        let mut labels = self.labels;
        labels.extend(info.labels.clone());
        let max_receive_bytes = match self.max_receive_bytes {
            0 => DEFAULT_RECEIVE_BYTES,
            bytes => bytes,
        };
        let offer = Offer {
            worker,
            agent: AgentKey::new(&self.namespace, &self.agent),
            info,
            version: self.version,
            description: self.description,
            request_schema_text: self.request_schema,
            reply_schema_text: self.reply_schema,
            labels,
            level,
            max_receive_bytes,
            request_schema: None,
            peer: peer.clone(),
        };
        Ok((offer, self.previous))
    }

    fn check_texts(&self, limits: &Limits) -> Result<(), Refusal> {
        let pattern = "[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?";
        if !is_valid_name(&self.agent) {
            return Err(Refusal::Invalid(format!(
                "agent.name must match {pattern}, got \"{}\"",
                shown(&self.agent)
            )));
        }
        if !self.namespace.is_empty() && !is_valid_name(&self.namespace) {
            return Err(Refusal::Invalid(format!(
                "namespace must be empty or match {pattern}, got \"{}\"",
                shown(&self.namespace)
            )));
        }
        for (field, labels) in [
            ("agent.labels", &self.labels),
            ("worker.labels", &self.info.labels),
        ] {
            if labels.len() > limits.labels {
                return Err(Refusal::Invalid(format!(
                    "{field} has {} pairs, the limit is {}",
                    labels.len(),
                    limits.labels
                )));
            }
            if labels
                .iter()
                .any(|(key, value)| key.len().max(value.len()) > TEXT_BYTES)
            {
                return Err(Refusal::Invalid(format!(
                    "{field} has a key or a value of more than {TEXT_BYTES} bytes"
                )));
            }
        }
        let texts = [
            ("agent.version", &self.version),
            ("agent.description", &self.description),
            ("worker.name", &self.info.name),
            ("worker.host", &self.info.host),
            ("worker.language", &self.info.language),
            ("worker.sdk_version", &self.info.sdk_version),
        ];
        for (field, text) in texts {
            if text.len() > TEXT_BYTES {
                return Err(Refusal::Invalid(format!(
                    "{field} has {} bytes, the limit is {TEXT_BYTES}",
                    text.len()
                )));
            }
        }
        Ok(())
    }
}

/// The beginning of a text of a peer, safe to print.
fn shown(text: &str) -> String {
    let beginning = beginning(text, SHOWN_BYTES);
    let more = if beginning.len() < text.len() {
        "..."
    } else {
        ""
    };
    format!("{}{more}", beginning.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            protocol_version: 1,
            worker_id: "0190e0a0-0000-7000-8000-000000000001".into(),
            agent: "echo".into(),
            ..Hello::default()
        }
    }

    fn refusal(hello: Hello) -> Refusal {
        hello
            .accept(&Limits::default(), &"peer".into())
            .expect_err("refused")
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let (offer, _) = hello()
            .accept(&Limits::default(), &"peer".into())
            .expect("accepted");
        assert_eq!(&*offer.agent.namespace, "default");
        assert_eq!(offer.level, Level::Minimal);
        assert_eq!(offer.max_receive_bytes, 4 * 1024 * 1024);
        assert_eq!(offer.info.name, "worker-0");
    }

    #[test]
    fn labels_of_the_worker_go_over_those_of_the_agent() {
        let pair = |value: &str| BTreeMap::from([("gpu".to_owned(), value.to_owned())]);
        let mut hello = hello();
        hello.labels = pair("none");
        hello.info.labels = pair("a100");
        let (offer, _) = hello
            .accept(&Limits::default(), &"peer".into())
            .expect("accepted");
        assert_eq!(offer.labels["gpu"], "a100");
    }

    #[test]
    fn each_bad_field_is_named() {
        let bad = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            match refusal(hello) {
                Refusal::Invalid(message) => message,
                other => panic!("expected an invalid field, got {other:?}"),
            }
        };
        assert!(bad(|h| h.worker_id = "me".into()).contains("worker.worker_id"));
        assert!(bad(|h| h.agent = "Echo".into()).contains("agent.name"));
        assert!(bad(|h| h.namespace = "a b".into()).contains("namespace"));
        assert!(bad(|h| h.version = "x".repeat(2000)).contains("agent.version"));
        assert!(
            bad(|h| h.labels = (0..33).map(|n| (n.to_string(), String::new())).collect())
                .contains("agent.labels")
        );
    }

    #[test]
    fn another_protocol_version_is_refused_by_number() {
        let other = Hello {
            protocol_version: 7,
            ..hello()
        };
        assert_eq!(refusal(other), Refusal::UnsupportedProtocol(7));
    }
}
