//! The keeper of one pool: drives its rules, acts them out, and tells the engine where it stands.
//!
//! Owns the pool's state; one task runs it. What each process says comes over one bounded channel,
//! what is wanted of each goes over a channel that holds the last order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tracing::{debug, error, info, warn};

use crate::config;
use crate::dispatch::Pooled;
use crate::engine::Engine;
use crate::envelope::{Code, Failure};
use crate::ids::{AgentKey, ProcessId};
use crate::pool::{Action, Ended, Event, Exit, Pool, Standing, View};
use crate::retry::ByChance;

use super::chain::chain;
use super::child::{Child, Order, Report, Reporter};
use super::jsonl::Habits;
use super::preparing::{Preparing, Surroundings};

/// Reports that may wait; a process whose report does not fit waits with it.
const REPORTS_WAITING: usize = 256;

/// What an operator is told of a pool.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The agent it offers.
    pub agent: AgentKey,
    /// Where it stands.
    pub pool: View,
    /// How its last process ended, or why it could not be started; empty when none has.
    pub last_exit: String,
    /// The last lines that one wrote to standard error, at most 1 KiB.
    pub last_stderr: Vec<String>,
}

/// What is asked of a keeper.
pub(super) enum Command {
    /// How the pool is.
    View(oneshot::Sender<PoolView>),
    /// Replace every process, forget a crash loop; tells how the pool is then.
    Restart(oneshot::Sender<PoolView>),
    /// Keep to another configuration.
    Reload(Arc<config::Pool>),
    /// Finish and go.
    Leave,
}

/// The keeper of one pool.
pub(super) struct Keeper {
    agent: AgentKey,
    config: Arc<config::Pool>,
    engine: Engine,
    preparing: Preparing,
    pool: Pool,
    habits: Habits,
    children: JoinSet<()>,
    /// Whose task is which.
    tasks: HashMap<Id, ProcessId>,
    orders: HashMap<ProcessId, watch::Sender<Order>>,
    reporting: mpsc::Sender<Report>,
    reports: mpsc::Receiver<Report>,
    told: Option<Standing>,
    last_exit: String,
    last_stderr: Vec<String>,
}

impl Keeper {
    pub(super) fn new(agent: AgentKey, config: Arc<config::Pool>, around: Surroundings) -> Self {
        let (reporting, reports) = mpsc::channel(REPORTS_WAITING);
        Self {
            agent,
            pool: Pool::new(config.rules(), Box::new(ByChance)),
            config,
            engine: around.engine.clone(),
            preparing: Preparing::new(around),
            habits: Habits::new(),
            children: JoinSet::new(),
            tasks: HashMap::new(),
            orders: HashMap::new(),
            reporting,
            reports,
            told: None,
            last_exit: String::new(),
            last_stderr: Vec::new(),
        }
    }

    /// Keeps the pool until it has left and nothing of it remains. Without anybody to command it,
    /// it leaves.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) -> AgentKey {
        self.apply(Event::Tick);
        while !self.pool.is_gone() {
            let wake = self.pool.next_wake();
            let due = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let leaving = *self.pool.standing() == Standing::Leaving;
            tokio::select! {
                report = self.reports.recv() => {
                    let report = report.expect("a sender must be kept with the receiver");
                    self.report(report);
                }
                command = commands.recv(), if !leaving => {
                    self.command(command.unwrap_or(Command::Leave));
                }
                () = due => self.apply(Event::Tick),
                Some(ended) = self.children.join_next_with_id() => self.child_ended(ended),
            }
        }
        while self.children.join_next().await.is_some() {}
        self.agent
    }

    /// The task of a process is over. It has reported before, unless it broke; its process was
    /// then killed with it.
    fn child_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let task = match &ended {
            Ok((task, ())) => *task,
            Err(broken) => broken.id(),
        };
        let Some(process) = self.tasks.remove(&task) else {
            return;
        };
        if let Err(broken) = ended {
            error!(pool = %self.agent, %broken, "the keeping of a worker broke");
            let (exit, was_asked) = (Exit::Unknown, true);
            self.apply(Event::Exited {
                process,
                exit,
                was_asked,
            });
            self.apply(Event::Reaped(process));
            self.orders.remove(&process);
        }
    }

    fn report(&mut self, report: Report) {
        if let Some((exit, stderr)) = report.last_words {
            (self.last_exit, self.last_stderr) = (exit, stderr);
        }
        let gone = match &report.event {
            Event::Reaped(process) | Event::NotStarted(process) => Some(*process),
            _ => None,
        };
        self.apply(report.event);
        if let Some(process) = gone {
            self.orders.remove(&process);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::View(answer) => drop(answer.send(self.view())),
            Command::Restart(answer) => {
                info!(pool = %self.agent, "restarting the pool");
                self.apply(Event::Restart);
                drop(answer.send(self.view()));
            }
            Command::Reload(config) => {
                let rules = config.rules();
                let replace = !config.same_make(&self.config);
                info!(pool = %self.agent, size = rules.size, replace, "reloading the pool");
                if replace {
                    self.habits = Habits::new();
                }
                self.config = config;
                self.apply(Event::Reload { rules, replace });
            }
            Command::Leave => self.apply(Event::Leave),
        }
    }

    fn view(&self) -> PoolView {
        PoolView {
            agent: self.agent.clone(),
            pool: self.pool.view(Instant::now()),
            last_exit: self.last_exit.clone(),
            last_stderr: self.last_stderr.clone(),
        }
    }

    fn apply(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.pool.apply(Instant::now(), event, &mut actions);
        for action in actions {
            match action {
                Action::Start(process) => self.start(process),
                Action::Dismiss(process) => self.order(process, Order::Dismiss),
                Action::Terminate(process) => self.order(process, Order::Terminate),
                Action::Kill(process) => self.order(process, Order::Kill),
                Action::Ended(process, ended) => self.log(process, ended),
            }
        }
        self.tell_standing();
    }

    fn start(&mut self, process: ProcessId) {
        let reporter = Reporter {
            process,
            reports: self.reporting.clone(),
        };
        let (order, orders) = watch::channel(Order::Serve);
        self.orders.insert(process, order);
        let task = match self.preparing.prepare((&self.agent, process), &self.config) {
            Ok((launch, dialled)) => {
                let child = Child {
                    agent: self.agent.clone(),
                    config: self.config.clone(),
                    launch,
                    dialled,
                    engine: self.engine.clone(),
                    habits: self.habits.clone(),
                    reporter,
                    orders,
                };
                self.children.spawn(child.run())
            }
            Err(why) => {
                let not_started = async move { reporter.not_started(chain(&why)).await };
                self.children.spawn(not_started)
            }
        };
        self.tasks.insert(task.id(), process);
    }

    fn order(&self, process: ProcessId, order: Order) {
        if let Some(orders) = self.orders.get(&process) {
            orders.send_if_modified(|last| {
                let above = order > *last;
                *last = order.max(*last);
                above
            });
        }
    }

    fn log(&self, process: ProcessId, ended: Ended) {
        let (pool, exit) = (&self.agent, &self.last_exit);
        match ended {
            Ended::Normal => debug!(%pool, %process, exit, "a worker has ended"),
            Ended::Stopped(reason) => info!(%pool, %process, exit, "a worker was ended: {reason}"),
            Ended::FailedStart => warn!(%pool, %process, exit, "a worker failed to start"),
            Ended::Crashed => warn!(%pool, %process, exit, "a worker crashed"),
        }
    }

    /// Tells the engine where the pool stands, when that has changed.
    fn tell_standing(&mut self) {
        let standing = self.pool.standing();
        if self.told.as_ref() == Some(standing) {
            return;
        }
        let pooled = match standing {
            Standing::Open => Pooled::Open,
            Standing::CrashLooping(why) => {
                let failure = self.crash_loop(why);
                error!(pool = %self.agent, "{}", failure.message);
                Pooled::CrashLooping(Box::new(failure))
            }
            // Its processes finish what they have; the agent is known until they are gone.
            Standing::Leaving => Pooled::Open,
        };
        self.told = Some(standing.clone());
        self.engine.pooled(self.agent.clone(), Some(pooled));
    }

    /// What whoever asks for an agent is told when its pool has given up.
    fn crash_loop(&self, why: &str) -> Failure {
        let (agent, exit) = (&self.agent, &self.last_exit);
        let mut message =
            format!("the pool of agent \"{agent}\" is crash-looping: {why}; last: {exit}");
        if let Some(last) = self
            .last_stderr
            .iter()
            .rfind(|line| !line.trim().is_empty())
        {
            message.push_str(&format!("; its last line on standard error: {last}"));
        }
        message.push_str(&format!("; mend it, then run `harness restart {agent}`"));
        let details = serde_json::json!({
            "pool": agent.to_string(),
            "exit": exit,
            "stderr": self.last_stderr,
        });
        Failure::new(Code::CrashLoop, message)
            .with_details(crate::envelope::Payload::json(&details))
    }
}
