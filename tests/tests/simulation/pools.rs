//! What only a harness that starts processes itself can know: that one is on its way to its end, that
//! nothing is left of it, and where its pool stands.

use harness_server::dispatch::{Event, Pooled};
use harness_server::envelope::{Code, Failure};
use harness_server::ids::AgentKey;
use harness_server::journal::Proof;
use harness_server::pool::Rung;

use crate::model::{Trigger, worker_id};
use crate::setting::AGENTS;
use crate::world::World;

impl World {
    /// A process with cancelled work has come to a rung, which operators see.
    pub(crate) fn stopping(&mut self, worker: usize, rung: Rung) {
        self.before(Trigger::Stopping);
        let worker = worker_id(worker);
        self.apply(Event::Stopping { worker, rung });
        for view in self.core.view_workers(self.now(), "default", "") {
            if view.offer.worker == worker {
                let shown = view.unreleased.iter().all(|work| work.rung == rung);
                assert!(shown, "{worker} is on rung {rung:?}");
            }
        }
    }

    /// Nothing is left of a process: it owes nothing any more.
    pub(crate) fn stopped(&mut self, worker: usize) {
        self.before(Trigger::Stopping);
        self.model.stopped(worker);
        let worker = worker_id(worker);
        let proof = Proof::Killed;
        self.apply(Event::Stopped { worker, proof });
        assert!(!self.core.owes_more(worker, None), "{worker} has stopped");
    }

    /// A pool stands elsewhere.
    pub(crate) fn pooled(&mut self, agent: usize, pool: Option<bool>) {
        self.before(Trigger::Pooled);
        self.model.pooled(agent, pool);
        let failure = || Box::new(Failure::new(Code::CrashLoop, "it crash-loops"));
        self.apply(Event::Pooled {
            agent: AgentKey::new("", AGENTS[agent]),
            pool: pool.map(|crash_loops| match crash_loops {
                true => Pooled::CrashLooping(failure()),
                false => Pooled::Open,
            }),
        });
    }
}
