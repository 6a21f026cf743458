//! The life of the harness: it reads and writes its disk, leaves, is killed, and is started anew.

use std::time::{Duration, Instant};

use harness_server::dispatch::{Adopted, Core, Event, Limits, Loaded, Replay, Stored};
use harness_server::envelope::{Code, Failure};
use harness_server::ids::RunId;
use harness_server::run::Terms;
use harness_server::store::State;

use super::account::{LATE, Stand, Trigger};
use super::disk::{Came, Line};
use super::frames::Down;
use super::{What, World};
use crate::tally::Tally;
use crate::world::InARow;

/// What the disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Works,
    /// It is read, and nothing is written.
    IsFull,
    Fails,
}

/// Where the harness is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Serves,
    Leaves,
    Down,
}

/// A harness without anything in it.
pub(super) fn core(limits: &Limits, generation: u32, now: Instant) -> Core {
    let leases = InARow(u128::from(generation) << 64);
    Core::new(limits.clone(), Box::new(leases), now)
}

impl World {
    /// What comes whatever happens.
    pub(super) fn plan(&mut self) {
        let ends_at = self.setting.ends_at;
        for worker in 0..self.setting.workers.len() {
            let process = self.new_process();
            for _ in 0..=self.random.below(2) {
                let seat = self.sits(worker, process);
                let early = self.random.percent(70);
                let most = if early { ends_at / 20 } else { ends_at };
                let at = self.random.below(most);
                self.at(at, What::Dial(seat));
            }
        }
        for _ in 0..self.setting.starts {
            let at = self.random.below(ends_at * 3 / 4);
            self.at(at, What::Start);
        }
        for _ in 0..self.setting.asks {
            let at = self.random.below(ends_at * 3 / 4);
            self.at(at, What::Ask);
        }
        if self.random.percent(40) {
            for _ in 0..=self.random.below(3) {
                let at = self.random.below(ends_at);
                let health = self.random.pick(&[Health::IsFull, Health::Fails]);
                self.at(at, What::Health(health));
                let until = at + self.random.micros(1000, 5_000_000);
                self.at(until, What::Health(Health::Works));
            }
        }
        if self.random.percent(20) {
            let at = ends_at / 3 + self.random.below(ends_at / 2);
            self.at(at, What::Leave(false));
            let grace = self.random.below(ends_at / 2);
            self.at(at + grace, What::Leave(true));
        }
    }

    pub(super) fn puts(&mut self, line: Line) {
        self.disk.line.push_back(line);
        self.plans_commit();
    }

    fn plans_commit(&mut self) {
        if !self.commits && !self.disk.line.is_empty() {
            self.commits = true;
            let after = self.random.micros(50, self.setting.fsync);
            self.later(after, What::Commit);
        }
    }

    pub(super) fn commits(&mut self) {
        self.commits = false;
        let all = self.disk.line.len();
        let some = self.random.percent(30) && all > 1;
        let count = if some {
            1 + self.random.index(all - 1)
        } else {
            all
        };
        let works = self.health == Health::Works;
        self.disk.commit(self.now(), count, works);
        self.plans_commit();
        self.plans_telling();
    }

    fn plans_telling(&mut self) {
        if !self.tells && !self.disk.told.is_empty() {
            self.tells = true;
            let after = self.random.micros(1, 1000);
            self.later(after, What::Tell);
        }
    }

    pub(super) fn tells(&mut self, tally: &mut Tally) {
        self.tells = false;
        let Some((run, came)) = self.disk.told.pop_front() else {
            return;
        };
        self.plans_telling();
        let stored = match came {
            Came::Done => Stored::Done,
            Came::Existing(known) => Stored::Existing(known),
            Came::Conflict(known) => Stored::Conflict(known),
            Came::Failed => Stored::Failed(Failure::new(Code::StoreUnavailable, "no")),
            Came::Flushed => return self.reads_again(run),
        };
        let made = self.disk.rows.get(&run);
        if self.core.has_durable(run) && came == Came::Failed {
            tally.meet("durable: a step is not written");
            self.account.run(run).stand = Stand::Gone;
            self.account.run(run).attempt_ends = None;
            if made.is_some() {
                self.account.outside.insert(run);
            }
        }
        let trigger = Trigger::Stored(run, came != Came::Failed);
        self.apply(trigger, Event::Stored { run, stored }, tally);
    }

    fn reads_again(&mut self, run: RunId) {
        if let Some(read) = self.read(run) {
            let after = self.random.micros(1, 20_000);
            self.later(after, What::Adopt(run, read.0, read.1, true));
        }
    }

    /// Reads a run, if it can be read, with its head.
    pub(super) fn read(&self, run: RunId) -> Option<(Option<Box<Adopted>>, u64)> {
        if self.health == Health::Fails {
            return None;
        }
        let Some(row) = self.disk.rows.get(&run) else {
            return Some((None, 0));
        };
        if row.state.is_ended() {
            return Some((None, row.head()));
        }
        let known = &self.account.runs[&run];
        let running = row.state == State::Running;
        let mut request = row.made.request.header();
        request.durable.clone_from(&row.made.request.durable);
        let adopted = Adopted {
            request,
            frame_bytes: row.made.request.frame_bytes(),
            terms: Terms {
                deadline: row.made.deadline,
                ..known.terms.clone()
            },
            placing: known.placing.clone(),
            created: row.made.created,
            not_before: row.not_before.max(row.made.start.not_before),
            attempt: row.attempt,
            counts: row.counts,
            running,
            holder: row.holder,
            head: row.head(),
            bytes: row.bytes(),
            worker_seq: row.worker_seq(),
            reply_seq: row.reply_seq,
            replayed: row.replayed.clone(),
            began: running.then_some(row.began),
        };
        Some((Some(Box::new(adopted)), row.head()))
    }

    pub(super) fn adopts(
        &mut self,
        run: RunId,
        adopted: Option<Box<Adopted>>,
        (head, again): (u64, bool),
        tally: &mut Tally,
    ) {
        let row = self.disk.rows.get(&run);
        let is_stale = row.is_some_and(|row| row.head() != head);
        // The engine notes what ends while it reads, and does not make that again.
        let adopted = adopted.filter(|_| !row.is_some_and(|row| row.state.is_ended()));
        let pending = self.disk.line.iter().any(|line| line.is_of(run));
        if is_stale || pending {
            self.disk.shaken.insert(run);
        } else if !self.core.has_durable(run) {
            self.disk.shaken.remove(&run);
        }
        self.account.now = self.now();
        if again || !self.core.is_adrift(run) {
            self.account.adopts(run, adopted.as_deref());
        }
        let event = Event::Adopt {
            run,
            adopted,
            again,
        };
        self.apply(Trigger::Adopt(run), event, tally);
    }

    pub(super) fn loaded(&mut self, run: RunId, tally: &mut Tally) {
        self.account.loading.remove(&run);
        let fails = self.health == Health::Fails || self.random.percent(2);
        let row = self.disk.rows.get(&run).filter(|_| !fails);
        let loaded = row.map(|row| {
            let mut replay = Replay::default();
            for entry in row.replay() {
                replay.add(entry);
            }
            Box::new(Loaded {
                request: (*row.made.request).clone(),
                replay,
            })
        });
        if loaded.is_none() {
            tally.meet("durable: a request is not read");
            self.account.pause_until = self.now() + Duration::from_secs(1) + LATE;
        }
        self.apply(Trigger::Loaded(run), Event::Loaded { run, loaded }, tally);
    }

    /// The harness leaves, or waits no longer.
    pub(super) fn leaves(&mut self, left: bool, tally: &mut Tally) {
        self.phase = Phase::Leaves;
        self.account.leaves();
        let event = match left {
            true => Event::ServerLeft,
            false => Event::ServerLeaving,
        };
        self.apply(Trigger::Leaving, event, tally);
        if left {
            self.later(1, What::Closes);
        }
    }

    /// A harness that has left writes what is in line, and is gone.
    pub(super) fn closes(&mut self, tally: &mut Tally) {
        let open = self.account.slots.iter().any(|slot| slot.open);
        assert!(!open, "a call outlived its harness");
        let answered = self.account.asks.values().all(|ask| ask.answered);
        assert!(answered, "a caller is not told that the harness has left");
        tally.meet("durable: the harness leaves");
        let all = self.disk.line.len();
        self.disk
            .commit(self.now(), all, self.health == Health::Works);
        self.is_gone();
    }

    /// The harness is killed: of what is in line the first steps may be on disk.
    pub(super) fn crashes(&mut self, tally: &mut Tally) {
        if self.phase == Phase::Down {
            return;
        }
        tally.meet("durable: the harness is killed");
        let some = self.random.index(self.disk.line.len() + 1);
        if self.health == Health::Works {
            self.disk.commit(self.now(), some, true);
        }
        self.is_gone();
    }

    fn is_gone(&mut self) {
        self.disk.line.clear();
        self.disk.told.clear();
        self.disk.shaken.clear();
        self.account.now = self.now();
        self.account.crashed();
        self.generation += 1;
        self.core = core(&self.setting.limits, self.generation, self.now());
        self.phase = Phase::Down;
        (self.commits, self.tells, self.tick_at) = (false, false, None);
        for call in 0..self.calls.len() {
            if !std::mem::replace(&mut self.calls[call].gone, true) {
                self.sends_down(call, Down::Broken);
            }
        }
        let unheard: Vec<RunId> = self
            .account
            .runs
            .iter()
            .filter(|(_, run)| run.unheard && run.told.is_none())
            .map(|(id, _)| *id)
            .collect();
        for run in unheard {
            if self.random.percent(50) {
                let after = self.random.micros(1000, 5_000_000);
                self.later(after, What::StartAgain(run));
            }
        }
        let after = self.random.micros(1000, 3_000_000);
        self.later(after, What::Restart);
    }

    pub(super) fn restarts(&mut self, tally: &mut Tally) {
        if self.phase != Phase::Down {
            return;
        }
        tally.meet("durable: the harness is started again");
        self.phase = Phase::Serves;
        self.core = core(&self.setting.limits, self.generation, self.now());
        let rows = self.disk.rows.iter();
        let unfinished = rows.filter(|(_, row)| !row.state.is_ended());
        self.account.outside = unfinished.map(|(id, _)| *id).collect();
        for agent in crate::setting::AGENTS {
            let agent = harness_server::ids::AgentKey::new("", agent);
            self.apply(Trigger::Other, Event::Remembered { agent }, tally);
        }
        self.restores();
    }

    pub(super) fn restores(&mut self) {
        let outside: Vec<RunId> = self.account.outside.iter().copied().collect();
        if self.health == Health::Fails {
            return self.later(1_000_000, What::Restore);
        }
        for run in outside {
            if let Some((adopted, head)) = self.read(run) {
                let after = self.random.micros(10, 200_000);
                self.later(after, What::Adopt(run, adopted, head, false));
            }
        }
    }

    /// Nothing new comes: calls are lost, the disk works, and time passes until all is over.
    pub(super) fn winds_down(&mut self, tally: &mut Tally) {
        self.is_over = true;
        self.health = Health::Works;
        if self.phase == Phase::Leaves {
            self.crashes(tally);
        }
        self.restarts(tally);
        for call in 0..self.calls.len() {
            if self.calls[call].is_known() && !self.calls[call].gone {
                self.loses(call, false, tally);
            }
        }
    }
}
