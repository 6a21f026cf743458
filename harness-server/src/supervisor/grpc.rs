//! The gRPC dialect: a process that dials back, with a token of its own, over the ordinary worker
//! protocol.
//!
//! Owns what it is told to dial, and the passing on of what becomes of its calls, which an ordinary
//! session serves. Holds no slot state and decides nothing.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::auth::{Auth, Death, Pass, Process, Told};
use crate::config::{self, Mode};
use crate::ids::{AgentKey, ProcessId};
use crate::pool::{Event, Exit};

use super::child::{Order, Reporter};
use super::death;
use super::door::Door;
use super::output::Tail;

/// How long after the end of a process its calls may take to end.
const CALLS_TIMEOUT: Duration = Duration::from_secs(3);

/// A process that is to dial back. Its token is good as long as this lives.
pub(super) struct Dialled {
    pass: Pass,
    news: mpsc::Receiver<Told>,
    address: String,
    #[expect(dead_code, reason = "is open as long as somebody may come by it")]
    door: Option<Arc<Door>>,
    attached: bool,
}

impl Dialled {
    /// Gives a process a token for `address`.
    pub(super) fn new(
        auth: &Auth,
        (agent, id): (&AgentKey, ProcessId),
        config: &config::Pool,
        address: String,
        door: Option<Arc<Door>>,
    ) -> Self {
        let per_request = config.mode == Mode::PerRequest;
        let (process, news) = Process::new(agent.clone(), id, per_request);
        Self {
            pass: auth.issue(process),
            news,
            address,
            door,
            attached: false,
        }
    }

    /// What its environment says of the harness.
    pub(super) fn environment(&self) -> [(OsString, OsString); 3] {
        let agent = self.process().agent();
        [
            ("HARNESS_ADDRESS", self.address.clone()),
            ("HARNESS_TOKEN", self.pass.token().text()),
            ("HARNESS_AGENT", agent.name.to_string()),
        ]
        .map(|(name, value)| (name.into(), value.into()))
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        self.pass.process()
    }

    /// Passes on what becomes of its calls until it has ended, and they have too. Whether it ever
    /// had one.
    pub(super) async fn run(
        &mut self,
        reporter: &Reporter,
        tail: &Tail,
        orders: &watch::Receiver<Order>,
        mut exit: watch::Receiver<Option<Exit>>,
    ) -> bool {
        let exit = loop {
            let ended = async {
                let ended = exit.wait_for(Option::is_some).await;
                ended.ok().and_then(|exit| *exit).unwrap_or(Exit::Unknown)
            };
            tokio::select! {
                Some(told) = self.news.recv() => self.report(reporter, told).await,
                exit = ended => break exit,
            }
        };
        self.died(exit, tail, orders);
        let process = self.process().clone();
        let over = async {
            loop {
                tokio::select! {
                    biased;
                    Some(told) = self.news.recv() => self.report(reporter, told).await,
                    () = process.alone() => return,
                }
            }
        };
        drop(tokio::time::timeout(CALLS_TIMEOUT, over).await);
        while let Ok(told) = self.news.try_recv() {
            self.report(reporter, told).await;
        }
        self.attached
    }

    /// Its calls end now, and what is in them fails.
    fn died(&self, exit: Exit, tail: &Tail, orders: &watch::Receiver<Order>) {
        let process = self.process();
        let by_itself = *orders.borrow() < Order::Terminate;
        let failure = by_itself.then(|| {
            let run = process.in_hand().get().map(|delivery| delivery.run);
            let last = run.map_or_else(Vec::new, |run| tail.last_of_run(run));
            death::failure(process.name().unwrap_or("unnamed"), exit, &last)
        });
        process.died(Death { exit, failure });
    }

    async fn report(&mut self, reporter: &Reporter, told: Told) {
        let process = reporter.process;
        match told {
            Told::Attached => {
                self.attached = true;
                reporter.attached().await;
            }
            Told::Answered => reporter.answered().await,
            Told::Detached(why) => reporter.tell(Event::Detached(process, why)).await,
        }
    }
}
