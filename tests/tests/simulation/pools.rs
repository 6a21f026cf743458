//! What only a harness that starts processes itself can know: that one is on its way to its end, that
//! nothing is left of it, and where its pool stands.

use harness_server::dispatch::{Event, Pooled};
use harness_server::envelope::{Code, Failure};
use harness_server::ids::{AgentKey, Delivery};
use harness_server::journal::Proof;
use harness_server::pool::Rung;

use crate::model::{Trigger, worker_id};
use crate::setting::AGENTS;
use crate::world::{What, World};

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

    /// A call is lost; of a process that the harness has started it may soon be known that it is dead.
    pub(crate) fn may_have_died(&mut self, worker: usize, delivery: Delivery) {
        let of = &self.setting.workers[worker];
        let (of_pool, dies) = (of.of_pool, of.dies);
        if dies || (of_pool && self.random.percent(70)) {
            let by_itself = dies || self.random.percent(70);
            let after = self
                .random
                .micros(1000, if dies { 500_000 } else { 5_000_000 });
            self.later(after, What::Perished(worker, delivery, by_itself));
        }
        // Somebody else's death is nothing to it.
        if self.random.percent(5) {
            let other = self.random.index(self.setting.workers.len());
            self.later(1000, What::Perished(other, delivery, true));
        }
    }

    /// The process of a lost call is dead.
    pub(crate) fn perished(&mut self, worker: usize, delivery: Delivery, by_itself: bool) {
        self.before(Trigger::Perished);
        self.model.perished(worker, delivery, by_itself);
        let failure = || Failure::new(Code::WorkerLost, "the worker's process died");
        self.apply(Event::Perished {
            work: (worker_id(worker), delivery),
            failure: by_itself.then(failure),
        });
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
