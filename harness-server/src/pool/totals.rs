//! What has happened to a pool since it began, for metrics. No rule reads it.

use std::time::Duration;

/// Counts that never go down, whatever is restarted or reloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Processes that died by themselves.
    pub crashes: u64,
    /// Processes that never became ready, or ended before they were given a request.
    pub failed_starts: u64,
    /// Processes started in a seat that had one before.
    pub restarts: u64,
    /// The most seats that were taken at once.
    seats_taken: usize,
    /// Cancelled requests whose worker said in time that it had stopped.
    pub released: Climbs,
    /// SIGTERM to a process group.
    pub sigterm: Climbs,
    /// SIGKILL to a process group.
    pub sigkill: Climbs,
    /// Processes on the ladder of which nothing is left.
    pub reaped: Climbs,
}

/// How often a rung of the kill ladder was stood on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Climbs {
    /// How often.
    pub count: u64,
    /// How long after the end of the call, all together.
    pub time: Duration,
}

impl Climbs {
    /// Once more, so long after the end of the call.
    pub(super) fn add(&mut self, after: Duration) {
        self.count += 1;
        self.time += after;
    }
}

impl Totals {
    /// A process is started; so many seats are taken now.
    pub(super) fn started(&mut self, seats_taken: usize) {
        if seats_taken > self.seats_taken {
            self.seats_taken = seats_taken;
        } else {
            self.restarts += 1;
        }
    }
}
