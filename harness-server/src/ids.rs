//! The identifiers everything else speaks of.
//!
//! Owns their shape and text form. Making fresh ones needs randomness and a clock and is the
//! engine's affair.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// A run, a UUIDv7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub Uuid);

/// A worker's process, the UUID it made at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub Uuid);

/// A slot, that is one open `Attach` call. Unique within one harness process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u64);

/// A process of a pool, numbered from 1 within it in the order of their starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u64);

/// One delivery of a run, numbered from 1. Zero means none was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// A compiled JSON Schema, interned by content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaId(pub u64);

/// Proof that a worker held a delivery: 16 random bytes, new at every delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Lease(pub [u8; 16]);

/// One delivery of one run: the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Delivery {
    /// The run.
    pub run: RunId,
    /// Which delivery of it.
    pub attempt: Attempt,
}

/// An agent within its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentKey {
    /// The namespace; never empty, "default" by default.
    pub namespace: Arc<str>,
    /// The agent's name.
    pub name: Arc<str>,
}

impl Attempt {
    /// The next delivery's number.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl AgentKey {
    /// Names an agent; an empty namespace is "default".
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        let namespace = if namespace.is_empty() {
            "default"
        } else {
            namespace
        };
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// Whether `name` is one an agent or a namespace may have:
/// `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    let outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| outer(byte) || matches!(byte, b'.' | b'_' | b'-');
    match name.as_bytes() {
        [only] => outer(*only),
        [first, middle @ .., last] => {
            middle.len() <= 61
                && outer(*first)
                && outer(*last)
                && middle.iter().all(|byte| inner(*byte))
        }
        [] => false,
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} attempt {}", self.run, self.attempt)
    }
}

impl fmt::Display for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if &*self.namespace == "default" {
            self.name.fmt(f)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease(..)")
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{Attempt, Delivery, Lease, RunId, SlotId, WorkerId, is_valid_name};

    #[test]
    fn identifiers_are_written_as_people_read_them() {
        let uuid = Uuid::from_u128(7);
        assert_eq!(RunId(uuid).to_string(), uuid.to_string());
        assert_eq!(WorkerId(uuid).to_string(), uuid.to_string());
        assert_eq!(SlotId(3).to_string(), "3");
        let delivery = Delivery {
            run: RunId(uuid),
            attempt: Attempt(2),
        };
        assert_eq!(delivery.to_string(), format!("run {uuid} attempt 2"));
    }

    #[test]
    fn a_lease_is_never_written_to_a_log() {
        assert_eq!(format!("{:?}", Lease([1; 16])), "Lease(..)");
    }

    #[test]
    fn names_follow_the_pattern() {
        for good in ["a", "9", "echo", "a.b_c-d", &"a".repeat(63)] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a b", "ä", ".", &"a".repeat(64)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
    }
}
