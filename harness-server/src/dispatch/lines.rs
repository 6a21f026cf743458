//! The durable runs of an agent that wait for a slot. They may be very many, and a slot looks for
//! one each time it is free: so they stand in lines, one for each selector, and a slot passes only
//! by those whose labels it has; while nothing may be read, only by those that need no reading.
//!
//! Which run a slot takes is `placing`'s affair.

use std::collections::BTreeMap;

use crate::ids::RunId;

use super::entry::QueueKey;

type Labels = BTreeMap<String, String>;

/// Waiting durable runs, by what they select.
#[derive(Debug, Default)]
pub(super) struct Lines {
    of: BTreeMap<Labels, Line>,
    len: usize,
}

/// Runs of one selector, the first to go first.
#[derive(Debug, Default)]
struct Line {
    /// Those whose request is here.
    here: BTreeMap<QueueKey, RunId>,
    /// Those whose request must be read for a slot.
    on_disk: BTreeMap<QueueKey, RunId>,
}

impl Lines {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A run waits, its request here or on disk only.
    pub(super) fn insert(&mut self, selector: &Labels, key: QueueKey, run: RunId, on_disk: bool) {
        if !self.of.contains_key(selector) {
            self.of.insert(selector.clone(), Line::default());
        }
        if let Some(line) = self.of.get_mut(selector) {
            let runs = match on_disk {
                true => &mut line.on_disk,
                false => &mut line.here,
            };
            self.len += usize::from(runs.insert(key, run).is_none());
        }
    }

    /// A run waits no more, if it did.
    pub(super) fn remove(&mut self, selector: &Labels, key: QueueKey) -> Option<RunId> {
        let line = self.of.get_mut(selector)?;
        let run = line.here.remove(&key).or_else(|| line.on_disk.remove(&key));
        if line.here.is_empty() && line.on_disk.is_empty() {
            self.of.remove(selector);
        }
        self.len -= usize::from(run.is_some());
        run
    }

    /// The run of a place, and whether its request is on disk only.
    #[cfg(test)]
    pub(super) fn get(&self, selector: &Labels, key: QueueKey) -> Option<(RunId, bool)> {
        let line = self.of.get(selector)?;
        let here = line.here.get(&key).map(|run| (*run, false));
        here.or_else(|| line.on_disk.get(&key).map(|run| (*run, true)))
    }

    #[cfg(test)]
    pub(super) fn runs(&self) -> impl Iterator<Item = &RunId> {
        let lines = self.of.values();
        lines.flat_map(|line| line.here.values().chain(line.on_disk.values()))
    }

    /// The first run that a slot with these labels takes.
    pub(super) fn first(
        &self,
        labels: &Labels,
        may_read: bool,
        takes: impl Fn(RunId) -> bool,
    ) -> Option<(QueueKey, RunId)> {
        let mut first: Option<(QueueKey, RunId)> = None;
        let runs = self.selecting(labels).flat_map(|line| {
            let on_disk = may_read.then_some(&line.on_disk);
            std::iter::once(&line.here).chain(on_disk)
        });
        for runs in runs {
            let mut sooner = runs
                .iter()
                .take_while(|(key, _)| first.is_none_or(|(first, _)| **key < first));
            let found = sooner.find(|(_, run)| takes(**run));
            first = found.map(|(key, run)| (*key, *run)).or(first);
        }
        first
    }

    /// The lines of which a slot with these labels has every label. Selectors with the same first
    /// label stand together, so only those are looked at whose first one it has.
    fn selecting(&self, labels: &Labels) -> impl Iterator<Item = &Line> {
        let any = self.of.get(&Labels::new());
        let others = match self.of.len() > usize::from(any.is_some()) {
            true => Some(labels),
            false => None,
        };
        let others = others.into_iter().flatten().flat_map(move |first| {
            let from = Labels::from([(first.0.clone(), first.1.clone())]);
            self.of
                .range(from..)
                .take_while(move |(selector, _)| selector.first_key_value() == Some(first))
                .filter(|(selector, _)| {
                    selector
                        .iter()
                        .all(|(key, value)| labels.get(key) == Some(value))
                })
                .map(|(_, line)| line)
        });
        any.into_iter().chain(others)
    }
}
