//! What a store is asked for in parts: which runs, and a piece of a journal.

use std::collections::BTreeMap;

use super::{Entry, Stamp, State};

/// Which runs to list. Every part that is set must match.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The namespace.
    pub namespace: String,
    /// The agent; empty means any.
    pub agent: String,
    /// Any of these; empty means any.
    pub states: Vec<State>,
    /// Every pair must be among the run's.
    pub labels: BTreeMap<String, String>,
    /// Made then or later.
    pub created_from: Option<Stamp>,
    /// Made earlier.
    pub created_before: Option<Stamp>,
}

/// A piece of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries, in order.
    pub entries: Vec<Entry>,
    /// The number of the newest entry; 0 where there is no such run.
    pub head: u64,
    /// Whether the run has ended.
    pub ended: bool,
}
