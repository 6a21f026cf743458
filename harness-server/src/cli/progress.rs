//! What becomes of the processes of pools, told as it happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness_server::ids::AgentKey;
use harness_server::pool::{PhaseView, Reason, State, StopView, Totals};
use harness_server::supervisor::{self, PoolView};

use super::output::{self, printable};

/// How often pools are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Tells for ever what changes from now on; `mend` is what helps a process that does not start.
pub(super) async fn tell(pools: &supervisor::Handle, now: Vec<PoolView>, mend: &str) {
    let mut told: BTreeMap<AgentKey, Told> = BTreeMap::new();
    for view in now {
        told.entry(view.agent.clone())
            .or_default()
            .news(&view, mend);
    }
    loop {
        for view in pools.list().await {
            let told = told.entry(view.agent.clone()).or_default();
            for line in told.news(&view, mend) {
                output::note(&line);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What has been told of a pool already.
#[derive(Default)]
struct Told {
    ready: BTreeSet<u32>,
    totals: Totals,
    gave_up: bool,
    last_stop: Option<StopView>,
}

impl Told {
    /// What is new in a view of the pool.
    fn news(&mut self, view: &PoolView, mend: &str) -> Vec<String> {
        let (pool, mut lines) = (&view.pool, Vec::new());
        let exit = printable(&view.last_exit);
        lines.extend(self.stop(pool.stops.last()));
        if pool.totals.crashes > self.totals.crashes {
            lines.push(format!("the process died: {exit}"));
        }
        let failed = pool.totals.failed_starts > self.totals.failed_starts;
        let gave_up = pool.state == State::CrashLooping;
        if failed || (gave_up && !self.gave_up) {
            let serving = pool
                .processes
                .iter()
                .find(|process| process.phase == PhaseView::Ready);
            let meanwhile = serving
                .and_then(|process| process.pid)
                .map_or_else(String::new, |pid| {
                    format!("; until then process {pid} serves on")
                });
            lines.push(format!(
                "the process did not start: {exit}; {mend}{meanwhile}"
            ));
        }
        let ready = pool.processes.iter();
        let ready: BTreeSet<u32> = ready
            .filter(|process| process.phase == PhaseView::Ready)
            .filter_map(|process| process.pid)
            .collect();
        for pid in ready.difference(&self.ready) {
            lines.push(format!(
                "process {pid} is ready to be asked as {}",
                view.agent
            ));
        }
        (self.totals, self.gave_up, self.ready) = (pool.totals, gave_up, ready);
        lines
    }

    /// That the harness has ended the process, when that was not because of a save.
    fn stop(&mut self, last: Option<&StopView>) -> Option<String> {
        let last = last?;
        let told = self.last_stop.as_ref().map(|stop| stop.process);
        if told == Some(last.process) {
            return None;
        }
        self.last_stop = Some(last.clone());
        match last.reason {
            Reason::Cancelled | Reason::Broke | Reason::Useless | Reason::NotReady => {
                let signal = match last.killed_after {
                    Some(_) => "SIGKILL",
                    None => "SIGTERM",
                };
                let (pid, reason) = (last.pid.unwrap_or_default(), last.reason);
                Some(format!("process {pid} was ended by {signal}: {reason}"))
            }
            Reason::Spent | Reason::Replaced | Reason::Resized | Reason::Leaving => None,
        }
    }
}
