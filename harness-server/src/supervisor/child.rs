//! One process of a pool, from its start to the reaping of its last descendant.
//!
//! Owns the process. It obeys its pool's orders and reports what happens; what follows is
//! `pool`'s affair.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};
use uuid::Uuid;

use crate::config::{self, Mode};
use crate::dispatch::{Offer, WorkerInfo};
use crate::engine::Engine;
use crate::ids::{AgentKey, ProcessId, WorkerId};
use crate::pool::{Event, Exit};
use crate::slot::Level;

use super::chain::chain;
use super::grpc::Dialled;
use super::jsonl::{Habits, Over, Session};
use super::output::{Lines, Stream, Tag, Tail, log};
use super::process::{Launch, Process, Streams};
use super::running::{Running, Worker};

/// How long after its end a process's output is waited for. Its descendants, which may hold it
/// open, are killed at once.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

/// What a pool wants of a process; a later one stands above the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// Serve.
    Serve,
    /// Finish what is in hand and leave.
    Dismiss,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// What a process tells its pool.
pub(super) struct Report {
    pub(super) event: Event,
    /// Of one that has ended, or is to be ended for what it did: how or why, and its last lines on
    /// standard error.
    pub(super) last_words: Option<(String, Vec<String>)>,
}

/// Tells the pool of one process.
#[derive(Clone)]
pub(super) struct Reporter {
    pub(super) process: ProcessId,
    pub(super) reports: mpsc::Sender<Report>,
}

/// What a process is made with.
pub(super) struct Child {
    pub(super) agent: AgentKey,
    pub(super) config: Arc<config::Pool>,
    pub(super) launch: Launch,
    /// What it dials back with; none of one that speaks JSON Lines.
    pub(super) dialled: Option<Dialled>,
    pub(super) engine: Engine,
    pub(super) habits: Habits,
    pub(super) reporter: Reporter,
    pub(super) orders: watch::Receiver<Order>,
}

/// How a process is spoken to.
enum Speaking {
    Jsonl(Box<Session>),
    Grpc(Box<Dialled>, watch::Receiver<Option<Exit>>),
}

impl Reporter {
    pub(super) async fn attached(&self) {
        self.tell(Event::Attached(self.process)).await;
    }

    pub(super) async fn answered(&self) {
        self.tell(Event::Answered(self.process)).await;
    }

    pub(super) async fn not_started(&self, why: String) {
        let event = Event::NotStarted(self.process);
        self.send(event, Some((why, Vec::new()))).await;
    }

    pub(super) async fn tell(&self, event: Event) {
        self.send(event, None).await;
    }

    async fn send(&self, event: Event, last_words: Option<(String, Vec<String>)>) {
        // A pool that is gone needs no report.
        drop(self.reports.send(Report { event, last_words }).await);
    }
}

impl Child {
    /// Starts the process and lives with it until nothing of it is left.
    pub(super) async fn run(mut self) {
        let process = self.reporter.process;
        let started = tokio::select! {
            started = Process::start(self.launch.clone()) => started.map_err(|error| chain(&error)),
            _ = self.orders.wait_for(|order| *order >= Order::Terminate) => {
                Err("it was ended before its command ran".to_owned())
            }
        };
        let (running, streams) = match started {
            Ok((process, streams)) => (process, streams),
            Err(why) => {
                warn!(pool = %self.agent, why, "a worker cannot be started");
                return self.reporter.not_started(why).await;
            }
        };
        let pid = running.pid();
        debug!(pool = %self.agent, pid, "a worker has started");
        self.reporter.tell(Event::Started { process, pid }).await;
        let worker = match &self.dialled {
            Some(dialled) => Worker::Dialled(dialled.process().clone()),
            None => Worker::Given(WorkerId(Uuid::new_v4())),
        };
        let running = Running::new(running, worker, self.engine.clone(), self.orders.clone());
        let reporter = self.reporter.clone();
        let (mut running, token) = self.serve(running, streams).await;
        running.reaped().await;
        // It is good until nothing is left.
        drop(token);
        reporter.tell(Event::Reaped(process)).await;
    }

    /// Speaks to the process until it has ended and all it wrote is read. What it dialled with is
    /// given back.
    async fn serve(
        mut self,
        mut running: Running,
        streams: Streams,
    ) -> (Running, Option<Box<Dialled>>) {
        let pid = running.pid();
        let tag = Tag {
            pool: self.agent.clone(),
            pid,
        };
        let (reporter, orders) = (self.reporter.clone(), self.orders.clone());
        let (ending, exit) = watch::channel(None);
        let (logged, mut all_logged) = watch::channel(false);
        let Streams {
            stdin,
            stdout,
            stderr,
        } = streams;
        let dialled = self.dialled.take();
        let (mut speaking, stdout, tail) = match dialled {
            Some(dialled) => {
                let tail = Tail::of(dialled.process().in_hand().clone());
                let grpc = Speaking::Grpc(Box::new(dialled), exit);
                (grpc, Some(stdout), tail)
            }
            None => {
                let tail = Tail::default();
                let session = self.session(&running, (stdin, stdout), &tail, exit);
                (Speaking::Jsonl(Box::new(session)), None, tail)
            }
        };
        let speak = speaking.speak(&reporter, &tail, &orders);
        let end = async {
            let exit = running.exited().await;
            let rest = all_logged.wait_for(|all| *all);
            drop(tokio::time::timeout(OUTPUT_TIMEOUT, rest).await);
            ending.send_replace(Some(exit));
            exit
        };
        let log = async {
            let noise = async {
                if let Some(stdout) = stdout {
                    log(stdout, Stream::Stdout, tag.clone(), tail.clone()).await;
                }
            };
            tokio::join!(
                log(stderr, Stream::Stderr, tag.clone(), tail.clone()),
                noise
            );
            logged.send_replace(true);
            std::future::pending::<()>().await;
        };
        let (was_asked, exit) = tokio::select! {
            lived = async { tokio::join!(speak, end) } => lived,
            () = log => unreachable!("it logs until all else is done"),
        };
        debug!(pid, %exit, "a worker has ended");
        let event = Event::Exited {
            process: reporter.process,
            exit,
            was_asked,
        };
        let last_words = Some((speaking.told_of(exit), tail.last()));
        reporter.send(event, last_words).await;
        match speaking {
            Speaking::Jsonl(_) => (running, None),
            Speaking::Grpc(dialled, _) => (running, Some(dialled)),
        }
    }

    fn session(
        self,
        running: &Running,
        (stdin, stdout): (Option<pipe::Sender>, pipe::Receiver),
        tail: &Tail,
        exit: watch::Receiver<Option<Exit>>,
    ) -> Session {
        let limits = self.engine.limits();
        let line_bytes = usize::try_from(limits.frame_bytes()).unwrap_or(usize::MAX);
        let pid = running.pid();
        let worker = running
            .worker()
            .expect("one that dials nobody must have been given its id");
        let offer = Offer {
            worker,
            info: WorkerInfo {
                name: format!("{}-{pid}", self.agent.name),
                pid,
                ..WorkerInfo::default()
            },
            agent: self.agent,
            version: String::new(),
            description: String::new(),
            request_schema_text: Bytes::new(),
            reply_schema_text: Bytes::new(),
            labels: BTreeMap::new(),
            level: Level::Minimal,
            max_receive_bytes: u64::MAX,
            request_schema: None,
            peer: "pool".into(),
        };
        Session {
            offer,
            per_request: self.config.mode == Mode::PerRequest,
            cancel_grace: self.config.stop.cancel_grace,
            habits: self.habits,
            tail: tail.clone(),
            reporter: self.reporter,
            orders: self.orders,
            exit,
            stdin,
            stdout: Lines::new(stdout, line_bytes),
            asked: 0,
            answered: 0,
            useless: None,
            engine: self.engine,
        }
    }
}

impl Speaking {
    /// How a process has ended, in words.
    fn told_of(&self, exit: Exit) -> String {
        match self {
            Self::Jsonl(session) => match &session.useless {
                Some(what) => format!("{exit}, because it {what}"),
                None => exit.to_string(),
            },
            Self::Grpc(..) => exit.to_string(),
        }
    }

    /// Speaks to a process until it has ended. Whether it was ever ready.
    async fn speak(
        &mut self,
        reporter: &Reporter,
        tail: &Tail,
        orders: &watch::Receiver<Order>,
    ) -> bool {
        match self {
            Self::Jsonl(session) => {
                let over = session.run().await;
                if let Over::Detached(why) = over {
                    let event = Event::Detached(reporter.process, why);
                    let useless = session.useless.as_ref();
                    let last_words = useless.map(|what| (format!("it {what}"), tail.last()));
                    reporter.send(event, last_words).await;
                }
                // What it still writes must not hold it up.
                tokio::select! {
                    () = session.stdout.drain() => {}
                    _ = session.exit.wait_for(Option::is_some) => {}
                }
                session.asked > 0
            }
            Self::Grpc(dialled, exit) => {
                let exit = exit.clone();
                dialled.run(reporter, tail, orders, exit).await
            }
        }
    }
}
