//! All pools of a harness: started together, listed, restarted, reloaded, left.
//!
//! Owns which pools there are. Each has a keeper, a task of its own, so that none waits for
//! another.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::auth::Auth;
use crate::config::{self, DialBack};
use crate::engine::Engine;
use crate::ids::AgentKey;
use crate::pool::Dialect;

use super::door::{self, Serve};
use super::keeper::{Command, Keeper, PoolView};
use super::launch::{LaunchError, Means, launch};
use super::preparing::Surroundings;
use super::process::StartError;

/// Commands that may wait for a keeper, or for the supervisor.
const COMMANDS_WAITING: usize = 16;

/// The pools of a harness, ready to run.
pub struct Supervisor {
    engine: Engine,
    auth: Auth,
    means: Arc<Means>,
    pools: Vec<config::Pool>,
    handle: Handle,
    requests: mpsc::Receiver<Request>,
}

/// Speaks to a running supervisor; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    means: Arc<Means>,
}

/// Why pools cannot be run as they are to be.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Who guards the processes was not said.
    #[error("pools need a guardian: name the harness binary as guard in the configuration")]
    NoGuard,
    /// A setting is not what it should be.
    #[error(transparent)]
    Config(#[from] config::PoolError),
    /// What a process is to be started with is not there.
    #[error("pool \"{pool}\"")]
    Launch {
        /// The pool.
        pool: String,
        /// What is missing.
        source: LaunchError,
    },
    /// A process cannot be isolated as it is to be, or not be guarded.
    #[error("pool \"{pool}\"")]
    Start {
        /// The pool.
        pool: String,
        /// Why.
        source: StartError,
    },
    /// There is no such pool.
    #[error("there is no pool \"{0}\"")]
    Unknown(AgentKey),
    /// It does not run, or not any more.
    #[error("the harness is leaving")]
    Left,
}

enum Request {
    List(oneshot::Sender<Vec<PoolView>>),
    Restart(AgentKey, oneshot::Sender<Option<PoolView>>),
    Reload(Vec<config::Pool>, oneshot::Sender<()>),
}

impl Supervisor {
    /// Takes the pools and tries everything about them but their commands.
    ///
    /// # Errors
    /// The first setting that cannot be given here, and why.
    pub async fn new(
        engine: Engine,
        auth: Auth,
        pools: Vec<config::Pool>,
        means: Means,
    ) -> Result<Self, SupervisorError> {
        try_out(&pools, &means, Commands::MayCome).await?;
        let (sender, requests) = mpsc::channel(COMMANDS_WAITING);
        let means = Arc::new(means);
        Ok(Self {
            engine,
            auth,
            pools,
            handle: Handle {
                requests: sender,
                means: means.clone(),
            },
            means,
            requests,
        })
    }

    /// Speaks to it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Keeps the pools until `leaving`, then until nothing of them is left. What they have in hand
    /// is the engine's to end. The sockets that processes dial back to are served by `serve`.
    pub async fn run(mut self, leaving: CancellationToken, serve: Serve) {
        let mut keepers = Keepers {
            around: Surroundings {
                engine: self.engine,
                auth: self.auth,
                guard: self.means.guard.clone().unwrap_or_default(),
                tcp: self.means.tcp.clone(),
                serve,
            },
            commands: BTreeMap::new(),
            running: JoinSet::new(),
        };
        for pool in self.pools {
            keepers.keep(pool);
        }
        loop {
            tokio::select! {
                () = leaving.cancelled() => break,
                Some(request) = self.requests.recv() => keepers.request(request).await,
                Some(left) = keepers.running.join_next() => keepers.left(left),
            }
        }
        // Without anybody to command them, they leave. Who still asks is told so.
        keepers.commands.clear();
        loop {
            tokio::select! {
                Some(request) = self.requests.recv() => drop(request),
                left = keepers.running.join_next() => match left {
                    Some(left) => keepers.left(left),
                    None => return,
                }
            }
        }
    }
}

/// Whether these pools can be run here. No command is run, but one that could not be executed is
/// refused; a [`Supervisor`] takes such a pool all the same, and has its processes fail to start.
///
/// # Errors
/// The first setting that cannot be given here, or command that cannot be executed, and why.
pub async fn check(pools: &[config::Pool], means: &Means) -> Result<(), SupervisorError> {
    try_out(pools, means, Commands::AreThere).await
}

/// What is asked of the commands of pools.
#[derive(Clone, Copy, PartialEq)]
enum Commands {
    /// They can be executed now.
    AreThere,
    /// Nothing: a pool without one holds up no other, and gives up by itself.
    MayCome,
}

async fn try_out(
    pools: &[config::Pool],
    means: &Means,
    commands: Commands,
) -> Result<(), SupervisorError> {
    config::check_pools(pools).map_err(|(_, error)| error)?;
    for pool in pools {
        let name = || pool.agent.clone();
        let guard = means.guard.as_ref().ok_or(SupervisorError::NoGuard)?;
        let refused = |source| SupervisorError::Launch {
            pool: name(),
            source,
        };
        let launch = launch(pool, guard).map_err(refused)?;
        // First, so that a user that cannot be given is what is named.
        match launch.check().await {
            Err(StartError::Command { .. }) if commands == Commands::MayCome => {}
            tried => tried.map_err(|source| SupervisorError::Start {
                pool: name(),
                source,
            })?,
        }
        match (pool.dialect, pool.address) {
            (Dialect::Jsonl, _) => {}
            (Dialect::Grpc, DialBack::Tcp) if means.tcp.is_some() => {}
            (Dialect::Grpc, DialBack::Tcp) => return Err(refused(LaunchError::NoTcp)),
            (Dialect::Grpc, DialBack::Unix) => {
                let tried = door::check(launch.isolation.user.as_ref());
                tried.map_err(|error| refused(LaunchError::Door(error)))?;
            }
        }
    }
    Ok(())
}

impl Handle {
    /// How every pool is, by agent.
    pub async fn list(&self) -> Vec<PoolView> {
        let (answer, list) = oneshot::channel();
        // One that has left has no pools.
        drop(self.requests.send(Request::List(answer)).await);
        list.await.unwrap_or_default()
    }

    /// Has every process of a pool replaced, one after the other, and a crash loop forgotten. How
    /// it is then.
    ///
    /// # Errors
    /// There is no such pool, or the harness is leaving.
    pub async fn restart(&self, agent: AgentKey) -> Result<PoolView, SupervisorError> {
        let (answer, view) = oneshot::channel();
        let request = Request::Restart(agent.clone(), answer);
        self.requests
            .send(request)
            .await
            .map_err(|_| SupervisorError::Left)?;
        let view = view.await.map_err(|_| SupervisorError::Left)?;
        view.ok_or(SupervisorError::Unknown(agent))
    }

    /// Adds, resizes, changes and removes pools until they are these. Requests in work are
    /// finished; a crash loop of those that stay is forgotten.
    ///
    /// # Errors
    /// The first setting that cannot be given here; nothing is changed then.
    pub async fn reload(&self, pools: Vec<config::Pool>) -> Result<(), SupervisorError> {
        try_out(&pools, &self.means, Commands::MayCome).await?;
        let (answer, done) = oneshot::channel();
        let request = Request::Reload(pools, answer);
        self.requests
            .send(request)
            .await
            .map_err(|_| SupervisorError::Left)?;
        done.await.map_err(|_| SupervisorError::Left)
    }
}

/// The keepers that run.
struct Keepers {
    around: Surroundings,
    /// Those of pools that are not to go.
    commands: BTreeMap<AgentKey, mpsc::Sender<Command>>,
    running: JoinSet<AgentKey>,
}

impl Keepers {
    fn keep(&mut self, pool: config::Pool) {
        let agent = AgentKey::new("", &pool.agent);
        let (commands, commanded) = mpsc::channel(COMMANDS_WAITING);
        let keeper = Keeper::new(agent.clone(), Arc::new(pool), self.around.clone());
        self.commands.insert(agent, commands);
        self.running.spawn(keeper.run(commanded));
    }

    async fn request(&mut self, request: Request) {
        match request {
            Request::List(answer) => {
                let mut views = Vec::new();
                for commands in self.commands.values() {
                    views.extend(asked(commands, Command::View).await);
                }
                drop(answer.send(views));
            }
            Request::Restart(agent, answer) => {
                let view = match self.commands.get(&agent) {
                    Some(commands) => asked(commands, Command::Restart).await,
                    None => None,
                };
                drop(answer.send(view));
            }
            Request::Reload(pools, answer) => {
                self.reload(pools).await;
                // Whoever asked may be gone.
                let _ = answer.send(());
            }
        }
    }

    async fn reload(&mut self, pools: Vec<config::Pool>) {
        let named = |agent: &AgentKey| pools.iter().any(|pool| *pool.agent == *agent.name);
        // Whoever has nobody to command it leaves.
        self.commands.retain(|agent, _| {
            let stays = named(agent);
            if !stays {
                info!(pool = %agent, "removing the pool");
            }
            stays
        });
        for pool in pools {
            match self.commands.get(&AgentKey::new("", &pool.agent)) {
                Some(commands) => drop(commands.send(Command::Reload(Arc::new(pool))).await),
                None => self.keep(pool),
            }
        }
    }

    /// A pool has left and nothing of it is left.
    fn left(&mut self, left: Result<AgentKey, tokio::task::JoinError>) {
        match left {
            // One that was added again meanwhile names the agent on.
            Ok(agent) if self.commands.contains_key(&agent) => {}
            Ok(agent) => self.around.engine.pooled(agent, None),
            Err(broken) => error!(%broken, "the keeping of a pool broke"),
        }
    }
}

/// What a keeper answers; none when it has just ended.
async fn asked(
    keeper: &mpsc::Sender<Command>,
    command: fn(oneshot::Sender<PoolView>) -> Command,
) -> Option<PoolView> {
    let (answer, view) = oneshot::channel();
    keeper.send(command(answer)).await.ok()?;
    view.await.ok()
}
