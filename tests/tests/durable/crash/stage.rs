//! The callers of the crash test: those that start runs until each is acknowledged, and those that
//! follow one to its end, over as many harnesses as it takes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness_proto::v1::{RetryPolicy, RunOptions, StartRunRequest, entry, watch_run_response};
use harness_tests::durable::{kind_of, start, watch};
use harness_tests::raw::runs;
use harness_tests::step_log::AGENT;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use super::below;

/// What every caller of the test knows.
#[derive(Clone)]
pub(super) struct Stage {
    address: String,
    stop: CancellationToken,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// The runs that were acknowledged, with their keys.
    acknowledged: BTreeMap<String, String>,
    /// The numbers that whoever followed a run has read.
    watched: HashMap<String, Vec<u64>>,
    following: Vec<JoinHandle<()>>,
}

impl Stage {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            stop: CancellationToken::new(),
            known: Arc::default(),
        }
    }

    pub(super) fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address))
            .expect("a valid address")
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            .connect_lazy()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs that were acknowledged, with their keys.
    pub(super) fn acknowledged(&self) -> BTreeMap<String, String> {
        self.known().acknowledged.clone()
    }

    /// What was read of the runs that were followed.
    pub(super) fn take_watched(&self) -> HashMap<String, Vec<u64>> {
        std::mem::take(&mut self.known().watched)
    }

    pub(super) fn take_following(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.known().following)
    }

    pub(super) fn stop_starting(&self) {
        self.stop.cancel();
    }

    /// Starts runs until it is told to stop, each until it is acknowledged.
    pub(super) async fn starts(self) {
        let mut number = 0;
        while !self.stop.is_cancelled() {
            number += 1;
            let key = format!("{}-{number}", Uuid::new_v4());
            let request = request(&key);
            let channel = self.channel();
            let run = loop {
                let mut client = runs(&channel);
                let started = client.start_run(request.clone());
                match tokio::time::timeout(Duration::from_secs(2), started).await {
                    Ok(Ok(answer)) => break answer.into_inner().run.expect("a run"),
                    // Killed under it: it may be made, and the key finds it.
                    Ok(Err(_)) | Err(_) => tokio::task::yield_now().await,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            let before = self.known().acknowledged.insert(run.run_id.clone(), key);
            assert!(before.is_none(), "run {} has two keys", run.run_id);
            tokio::time::sleep(Duration::from_millis(below(20))).await;
        }
    }

    /// Has the newest run followed to its end.
    pub(super) fn follow_newest(&self, runtime: &Runtime) {
        let mut known = self.known();
        if let Some(run_id) = known.acknowledged.keys().next_back().cloned() {
            let following = runtime.spawn(self.clone().follows(run_id));
            known.following.push(following);
        }
    }

    /// Follows a run to its end from number to number, over as many harnesses as it takes.
    async fn follows(self, run_id: String) {
        let mut seqs: Vec<u64> = Vec::new();
        let mut ended = false;
        let channel = self.channel();
        loop {
            let next = seqs.last().map_or(1, |last| last + 1);
            let Ok(Ok(mut events)) =
                tokio::time::timeout(Duration::from_secs(2), watch(&channel, &run_id, next)).await
            else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            // An error is a harness that was killed: it goes on with the next.
            while let Ok(Ok(message)) =
                tokio::time::timeout(Duration::from_secs(20), events.message()).await
            {
                let Some(event) = message else {
                    assert!(ended, "OK came before run {run_id} has ended");
                    self.known().watched.insert(run_id, seqs);
                    return;
                };
                if let Some(watch_run_response::Event::Entry(entry)) = event.event {
                    seqs.push(entry.seq);
                    ended |= matches!(kind_of(&entry), Some(entry::Kind::RunEnded(_)));
                }
            }
        }
    }
}

/// A run of which more attempts may be lost than chance will kill workers under it.
fn request(key: &str) -> StartRunRequest {
    let retry_policy = RetryPolicy {
        max_attempts: 16,
        initial_backoff: Some(backoff()),
        max_backoff: Some(backoff()),
        ..RetryPolicy::default()
    };
    StartRunRequest {
        idempotency_key: key.to_owned(),
        options: Some(RunOptions {
            retry_policy: Some(retry_policy),
            ..RunOptions::default()
        }),
        ..start(AGENT, &format!("\"{key}\""))
    }
}

fn backoff() -> prost_types::Duration {
    prost_types::Duration {
        seconds: 0,
        nanos: 50_000_000,
    }
}
