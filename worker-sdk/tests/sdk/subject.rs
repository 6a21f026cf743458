//! The worker under test, and a relay between it and the harness that can be cut.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use worker_sdk::worker::WorkerBuilder;
use worker_sdk::{Agent, Error, Worker};

use crate::fake::{Fake, within};

/// A running worker. Dropping it drops the worker.
pub(crate) struct Running {
    leave: CancellationToken,
    task: JoinSet<Result<(), Error>>,
}

impl Running {
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    /// How `run` returned.
    pub(crate) async fn ended(mut self) -> Result<(), Error> {
        within("end of the worker", self.task.join_next())
            .await
            .unwrap()
            .unwrap()
    }
}

pub(crate) fn builder<A: Agent>(agent: A, address: &str) -> WorkerBuilder {
    Worker::builder(agent)
        .name("subject")
        .connect(address)
        .reconnect_waits(Duration::from_millis(1), Duration::from_millis(20))
}

pub(crate) fn start(builder: WorkerBuilder) -> Running {
    let leave = CancellationToken::new();
    let mut task = JoinSet::new();
    task.spawn(builder.run_until(leave.clone().cancelled_owned()));
    Running { leave, task }
}

/// A TCP relay before a harness, to cut.
pub(crate) struct Relay {
    pub(crate) address: String,
    connections: Arc<Mutex<JoinSet<()>>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn before(fake: &Fake) -> Self {
        let target = fake.address.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let held = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = TcpStream::connect(&target).await.unwrap();
                held.lock().unwrap().spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self {
            address,
            connections,
            accepting,
        }
    }

    /// Cuts every connection there is.
    pub(crate) fn cut(&self) {
        self.connections.lock().unwrap().abort_all();
    }
}

impl Relay {
    /// Cuts every connection there is and takes no new one.
    pub(crate) fn close(&self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
