//! What an operator asks of a harness, and where runs stand.
//!
//! Owns the calls of [`Harness`] that ask no agent.

use std::time::Duration;

use harness_proto::v1;

use super::{Harness, WatchRun, admin, pools, runs};
use crate::error::{Error, ErrorKind};
use crate::wire;

impl Harness {
    /// The agents known in a namespace; empty means `default`.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn agents(&self, namespace: &str) -> Result<Vec<admin::Agent>, Error> {
        let request = v1::ListAgentsRequest {
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.admin().list_agents(request)).await?;
        Ok(answer.agents.into_iter().map(wire::admin::agent).collect())
    }

    /// The workers attached in a namespace, of one agent or, when `agent` is empty, of all.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn workers(&self, namespace: &str, agent: &str) -> Result<Vec<admin::Worker>, Error> {
        let request = v1::ListWorkersRequest {
            namespace: namespace.to_owned(),
            agent: agent.to_owned(),
        };
        let answer = self.called(self.admin().list_workers(request)).await?;
        Ok(answer
            .workers
            .into_iter()
            .map(wire::admin::worker)
            .collect())
    }

    /// Asks a worker, by id or name, to finish, leave and not come back. An empty namespace means
    /// `default`; the reason is for its log.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn drain_worker(
        &self,
        namespace: &str,
        worker: &str,
        reason: &str,
    ) -> Result<Option<admin::Worker>, Error> {
        let request = v1::DrainWorkerRequest {
            worker: worker.to_owned(),
            reason: reason.to_owned(),
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.admin().drain_worker(request)).await?;
        Ok(answer.worker.map(wire::admin::worker))
    }

    /// A page of runs, durable ones only, the newest first.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn list_runs(&self, query: runs::RunQuery) -> Result<runs::RunPage, Error> {
        let request = wire::runs::query_out(query);
        let answer = self.called(self.runs().list_runs(request)).await?;
        Ok(runs::RunPage {
            runs: answer.runs.into_iter().map(wire::runs::run).collect(),
            next_page_token: answer.next_page_token,
        })
    }

    /// The pools of a namespace; empty means `default`.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn pools(&self, namespace: &str) -> Result<Vec<pools::Pool>, Error> {
        let request = v1::ListPoolsRequest {
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.admin().list_pools(request)).await?;
        Ok(answer.pools.into_iter().map(wire::admin::pool).collect())
    }

    /// Has every process of a pool replaced, one after the other, and a crash loop forgotten. Gives
    /// the pool as it is then. An empty namespace means `default`.
    ///
    /// # Errors
    /// `InvalidRequest` when there is no such pool, `Unreachable`, or what else the harness answers.
    pub async fn restart_pool(&self, namespace: &str, agent: &str) -> Result<pools::Pool, Error> {
        let request = v1::RestartPoolRequest {
            agent: agent.to_owned(),
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.admin().restart_pool(request)).await?;
        let pool = answer.pool.map(wire::admin::pool);
        pool.ok_or_else(|| Error::new(ErrorKind::Transport, "the harness told no pool"))
    }

    /// What the server is and what it allows.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn server_info(&self) -> Result<admin::ServerInfo, Error> {
        let request = v1::GetServerInfoRequest {};
        let answer = self.called(self.admin().get_server_info(request)).await?;
        Ok(wire::admin::server_info(answer))
    }

    /// Where a run stands. An interactive run is kept for a minute after its end.
    ///
    /// ```no_run
    /// # async fn run(harness: worker_sdk::Harness, run_id: &str) -> Result<(), worker_sdk::Error> {
    /// let run = harness.run("", run_id).await?;
    /// println!("{:?} in attempt {}", run.state, run.attempt);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `RunNotFound`, `Unreachable`, or what else the harness answers.
    pub async fn run(&self, namespace: &str, run_id: &str) -> Result<runs::Run, Error> {
        self.run_as(namespace, run_id, None).await
    }

    /// A run when it has ended, or as it stands after so long: its state tells. It may be told sooner
    /// than either, when the harness leaves or its store fails: then wait again.
    ///
    /// ```no_run
    /// # async fn run(harness: worker_sdk::Harness, run_id: &str) -> Result<(), worker_sdk::Error> {
    /// let run = harness.wait_for_end("", run_id, std::time::Duration::from_secs(60)).await?;
    /// match run.outcome {
    ///     Some(outcome) => println!("{outcome:?}"),
    ///     None => println!("still {:?}", run.state),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Harness::run`].
    pub async fn wait_for_end(
        &self,
        namespace: &str,
        run_id: &str,
        at_most: Duration,
    ) -> Result<runs::Run, Error> {
        let at_most = wire::duration_out(at_most);
        self.run_as(namespace, run_id, Some(at_most)).await
    }

    async fn run_as(
        &self,
        namespace: &str,
        run_id: &str,
        wait_for_end: Option<prost_types::Duration>,
    ) -> Result<runs::Run, Error> {
        let request = v1::GetRunRequest {
            run_id: run_id.to_owned(),
            namespace: namespace.to_owned(),
            wait_for_end,
        };
        let answer = self.called(self.runs().get_run(request)).await?;
        answer.run.map(wire::runs::run).ok_or_else(untold)
    }

    /// Cancels a run and gives it as it is then: one that had ended stays as it ended. The reason is
    /// for its journal and its error, may be empty and has at most 1 KiB.
    ///
    /// # Errors
    /// As [`Harness::run`].
    pub async fn cancel_run(
        &self,
        namespace: &str,
        run_id: &str,
        reason: &str,
    ) -> Result<runs::Run, Error> {
        let request = v1::CancelRunRequest {
            run_id: run_id.to_owned(),
            reason: reason.to_owned(),
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.runs().cancel_run(request)).await?;
        answer.run.map(wire::runs::run).ok_or_else(untold)
    }

    /// Follows a run's journal; see [`WatchRun`].
    ///
    /// ```no_run
    /// use worker_sdk::client::WatchEvent;
    /// # async fn run(harness: worker_sdk::Harness, run_id: &str) -> Result<(), worker_sdk::Error> {
    /// let mut watch = harness.watch_run("", run_id).from_seq(3).await?;
    /// while let Some(event) = watch.next().await {
    ///     if let WatchEvent::Entry(entry) = event? {
    ///         println!("{} {:?}", entry.seq, entry.content);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_run(&self, namespace: &str, run_id: &str) -> WatchRun {
        WatchRun::new(self.clone(), namespace, run_id)
    }
}

fn untold() -> Error {
    Error::new(ErrorKind::Transport, "the harness told no run")
}
