//! A whole harness: engine, listeners and services, from start to leaving in good order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::info;

use crate::api::{self, Router};
use crate::auth::Auth;
use crate::config::Config;
use crate::engine::Engine;
use crate::listener::{Address, ListenError, Listener};
use crate::store::{Sqlite, Store, StoreError};
use crate::supervisor::{self, Means, Serve, Supervisor, SupervisorError};

/// How long sessions and connections may take to end once they have been told to.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A harness that listens and is ready to run.
///
/// ```
/// use harness_server::{Config, Server};
/// use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config { listen: vec!["127.0.0.1:0".into()], ..Config::default() };
/// let server = Server::bind(config).await?;
/// let address = server.addresses()[0].clone();
///
/// let stop = CancellationToken::new();
/// let running = tokio::spawn(server.run(stop.clone()));
/// // Workers and callers now connect to `address`.
/// # drop(address);
/// stop.cancel();
/// running.await?;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    engine: Engine,
    listeners: Vec<Listener>,
    router: Router,
    sessions: TaskTracker,
    supervisor: Supervisor,
}

/// Why a harness cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A pool cannot be run as it is to be.
    #[error(transparent)]
    Pools(#[from] SupervisorError),
    /// The store cannot be opened.
    #[error("cannot open the store in {}", folder.display())]
    Store {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        source: StoreError,
    },
}

/// Opens the store of a folder, which may take a while.
async fn open(folder: PathBuf) -> Result<Arc<dyn Store>, ServerError> {
    let path = folder.clone();
    let opened = tokio::task::spawn_blocking(move || Sqlite::open(&path));
    match opened.await.expect("opening a store must not panic") {
        Ok(store) => Ok(Arc::new(store)),
        Err(source) => Err(ServerError::Store { folder, source }),
    }
}

impl Server {
    /// Binds every address of the configuration, and tries everything about its pools but their
    /// commands.
    ///
    /// # Errors
    /// Which address cannot be listened on, or which setting of a pool cannot be given here, and
    /// what to do.
    pub async fn bind(config: Config) -> Result<Self, ServerError> {
        let store = match config.data.clone() {
            Some(folder) => Some(open(folder).await?),
            None => None,
        };
        Self::bind_with(config, store).await
    }

    /// [`Self::bind`] with a store of the application's own, whatever the configuration says.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub async fn bind_with(
        config: Config,
        store: Option<Arc<dyn Store>>,
    ) -> Result<Self, ServerError> {
        config.limits.check().map_err(ListenError::from)?;
        if config.listen.is_empty() {
            return Err(ListenError::Nowhere.into());
        }
        let mut listeners = Vec::new();
        for address in &config.listen {
            let address: Address = address.parse().map_err(ListenError::Address)?;
            listeners.push(Listener::bind(&address, config.insecure).await?);
        }
        let names = listeners
            .iter()
            .map(|listener| listener.name().to_owned())
            .collect();
        let engine = match store {
            Some(store) => {
                let records = Box::new(api::WireRecords::default());
                Engine::with_store(config.limits, store, records)
            }
            None => Engine::new(config.limits),
        };
        let auth = Auth::default();
        let means = Means {
            guard: config.guard,
            tcp: listeners.iter().find_map(Listener::dialled_here),
        };
        let supervisor = Supervisor::new(engine.clone(), auth.clone(), config.pools, means).await?;
        let sessions = TaskTracker::new();
        let router = api::router(&engine, sessions.clone(), names, supervisor.handle(), auth);
        Ok(Self {
            engine,
            listeners,
            router,
            sessions,
            supervisor,
        })
    }

    /// Speaks to its pools.
    #[must_use]
    pub fn pools(&self) -> supervisor::Handle {
        self.supervisor.handle()
    }

    /// The addresses it listens on, with the ports the system gave.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.listeners
            .iter()
            .map(|listener| listener.name().to_owned())
            .collect()
    }

    /// Serves until `stop`, then leaves in good order: nothing new starts, what runs may finish
    /// within `shutdown_grace`, workers are told to come back, callers are answered.
    pub async fn run(self, stop: CancellationToken) {
        let ended = CancellationToken::new();
        let accepted_until = stop.child_token();
        // Dropping this future stops everything it has started.
        let _guards = (
            ended.clone().drop_guard(),
            accepted_until.clone().drop_guard(),
        );
        let timer = tokio::spawn({
            let (engine, ended) = (self.engine.clone(), ended.clone());
            async move { engine.run(ended).await }
        });
        let stored = tokio::spawn({
            let (engine, ended) = (self.engine.clone(), ended.clone());
            async move { engine.run_store(ended).await }
        });
        let (accepting, connections) = (TaskTracker::new(), TaskTracker::new());
        // Its processes may dial until nothing of them is left.
        let doors = TaskTracker::new();
        let serve: Serve = Arc::new({
            let (router, limits) = (self.router.clone(), self.engine.limits().clone());
            let (doors, connections) = (doors.clone(), connections.clone());
            let ended = ended.clone();
            move |socket, stop| {
                let listener = Listener::of_processes(socket);
                let (connections, close) = (connections.clone(), ended.clone());
                doors.spawn(listener.serve(
                    router.clone(),
                    limits.clone(),
                    connections,
                    stop,
                    close,
                ));
            }
        });
        // It begins to leave with the engine, which ends what its processes have in hand.
        let pools = self.supervisor.run(accepted_until.clone(), serve);
        let pools = AbortOnDropHandle::new(tokio::spawn(pools));
        for listener in self.listeners {
            accepting.spawn(listener.serve(
                self.router.clone(),
                self.engine.limits().clone(),
                connections.clone(),
                accepted_until.clone(),
                ended.clone(),
            ));
        }
        accepting.close();
        stop.cancelled().await;
        info!("leaving");
        accepting.wait().await;
        self.engine.leave().await;
        pools.await.expect("the supervisor must not panic");
        ended.cancel();
        for tracker in [&doors, &connections, &self.sessions] {
            tracker.close();
            // What does not end in time is dropped with the runtime.
            drop(tokio::time::timeout(END_TIMEOUT, tracker.wait()).await);
        }
        timer.await.expect("the timer must not panic");
        stored.await.expect("reading the store must not panic");
        self.engine.close_store().await;
        info!("left");
    }
}
