//! How often starts failed and processes crashed, and what that means for the next start.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Crashes that are remembered at most; no limit of a pool may be larger.
pub const CRASHES_MAX: u32 = 1_000;

/// When a pool gives up starting processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// A process that has lived so long since it was ready was no failed start, and those before it
    /// are forgiven. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub min_uptime: Duration,
    /// So many failed starts in a row are a crash loop; 0 is no limit. Default 5.
    pub max_failed_starts: u32,
    /// So many crashes within the window are a crash loop; 0 is no limit. Default 10.
    pub max_crashes: u32,
    /// How long a crash counts. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            min_uptime: Duration::from_secs(5),
            max_failed_starts: 5,
            max_crashes: 10,
            window: Duration::from_secs(60),
        }
    }
}

/// What follows the death of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Its seat is filled at once.
    AtOnce,
    /// Its seat waits; the number is that of the retry, the first being 1.
    BackOff(u32),
    /// Nothing is started any more, for this reason.
    GiveUp(String),
}

/// What is remembered of a pool's failures.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// In a row.
    failed_starts: u32,
    /// Deaths in a row of processes that had done nothing useful.
    fruitless: u32,
    /// The oldest first.
    crashes: VecDeque<Instant>,
}

impl Restarts {
    /// A process never became ready, or ended before it was given a request.
    pub(super) fn failed_start(&mut self, limits: &Restart) -> Next {
        self.failed_starts = self.failed_starts.saturating_add(1);
        if limits.max_failed_starts > 0 && self.failed_starts >= limits.max_failed_starts {
            return Next::GiveUp(format!("{} starts in a row failed", self.failed_starts));
        }
        self.back_off()
    }

    /// A process died by itself. One that had answered, or lived long, is replaced at once.
    pub(super) fn crashed(&mut self, now: Instant, limits: &Restart, was_useful: bool) -> Next {
        self.crashes.push_back(now);
        if self.crashes.len() > CRASHES_MAX as usize {
            self.crashes.pop_front();
        }
        let recent = self.recent_crashes(now, limits);
        if limits.max_crashes > 0 && recent >= limits.max_crashes {
            return Next::GiveUp(format!("{recent} crashes within {:?}", limits.window));
        }
        if was_useful {
            return Next::AtOnce;
        }
        self.back_off()
    }

    /// A process has lived for `min_uptime`.
    pub(super) fn proved(&mut self) {
        self.failed_starts = 0;
        self.fruitless = 0;
    }

    /// A process has answered its first request.
    pub(super) fn useful(&mut self) {
        self.fruitless = 0;
    }

    /// An operator starts afresh.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed_starts(&self) -> u32 {
        self.failed_starts
    }

    /// Crashes within the window.
    pub(super) fn recent_crashes(&self, now: Instant, limits: &Restart) -> u32 {
        let counts = |at: &&Instant| now.saturating_duration_since(**at) < limits.window;
        let recent = self.crashes.iter().filter(counts).count();
        u32::try_from(recent).unwrap_or(u32::MAX)
    }

    fn back_off(&mut self) -> Next {
        self.fruitless = self.fruitless.saturating_add(1);
        Next::BackOff(self.fruitless)
    }
}
