//! `AdminService`: what operators see.

use std::time::Instant;

use tonic::{Request, Response, Status};

use harness_proto::relay;
use harness_proto::relay::admin_service_server::AdminService;

use crate::dispatch::{AgentView, SlotStateView, SlotView, UnreleasedView, WorkerView};
use crate::engine::Engine;
use crate::envelope::Code;
use crate::ids::{AgentKey, WorkerId};
use crate::session::PROTOCOL_VERSION;
use crate::supervisor::{self, SupervisorError};

use super::convert;
use super::pools::{pool_to_proto, rung_to_proto};
use super::status::refused;

/// The service.
pub(super) struct Admin {
    engine: Engine,
    listeners: Vec<String>,
    pools: supervisor::Handle,
}

impl Admin {
    pub(super) fn new(engine: Engine, listeners: Vec<String>, pools: supervisor::Handle) -> Self {
        Self {
            engine,
            listeners,
            pools,
        }
    }
}

impl Admin {
    /// A worker by its id, or by its name where only one has it.
    fn find(&self, namespace: &str, name: &str) -> Result<WorkerId, Status> {
        let workers = self.engine.workers(namespace, "");
        let named: Vec<WorkerId> = workers
            .iter()
            .filter(|view| view.offer.info.name == name || view.offer.worker.to_string() == name)
            .map(|view| view.offer.worker)
            .collect();
        match named[..] {
            [only] => Ok(only),
            [] => {
                let message = format!("no worker \"{name}\" is attached: see `harness workers`");
                Err(refused(Code::InvalidRequest, message))
            }
            _ => {
                let message = format!(
                    "{} workers are called \"{name}\": name one by its worker_id",
                    named.len()
                );
                Err(refused(Code::InvalidRequest, message))
            }
        }
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn list_agents(
        &self,
        request: Request<relay::ListAgentsRequest>,
    ) -> Result<Response<relay::ListAgentsResponse>, Status> {
        let views = self.engine.agents(namespace(&request.get_ref().namespace));
        let agents = views.into_iter().map(agent).collect();
        Ok(Response::new(relay::ListAgentsResponse { agents }))
    }

    async fn list_workers(
        &self,
        request: Request<relay::ListWorkersRequest>,
    ) -> Result<Response<relay::ListWorkersResponse>, Status> {
        let asked = request.get_ref();
        let views = self
            .engine
            .workers(namespace(&asked.namespace), &asked.agent);
        let workers = views.into_iter().map(worker).collect();
        Ok(Response::new(relay::ListWorkersResponse { workers }))
    }

    async fn drain_worker(
        &self,
        request: Request<relay::DrainWorkerRequest>,
    ) -> Result<Response<relay::DrainWorkerResponse>, Status> {
        let asked = request.into_inner();
        let namespace = namespace(&asked.namespace);
        let id = self.find(namespace, &asked.worker)?;
        self.engine.drain(id, asked.reason);
        let workers = self.engine.workers(namespace, "");
        let drained = workers.into_iter().find(|view| view.offer.worker == id);
        Ok(Response::new(relay::DrainWorkerResponse {
            worker: drained.map(worker),
        }))
    }

    async fn list_pools(
        &self,
        request: Request<relay::ListPoolsRequest>,
    ) -> Result<Response<relay::ListPoolsResponse>, Status> {
        let namespace = namespace(&request.get_ref().namespace);
        let views = self.pools.list().await.into_iter();
        let asked = views.filter(|view| &*view.agent.namespace == namespace);
        Ok(Response::new(relay::ListPoolsResponse {
            pools: asked.map(pool_to_proto).collect(),
        }))
    }

    async fn restart_pool(
        &self,
        request: Request<relay::RestartPoolRequest>,
    ) -> Result<Response<relay::RestartPoolResponse>, Status> {
        let asked = request.get_ref();
        let agent = AgentKey::new(namespace(&asked.namespace), &asked.agent);
        match self.pools.restart(agent).await {
            Ok(view) => Ok(Response::new(relay::RestartPoolResponse {
                pool: Some(pool_to_proto(view)),
            })),
            Err(error @ SupervisorError::Unknown(_)) => {
                let message = format!("{error}: see `harness pools`");
                Err(refused(Code::InvalidRequest, message))
            }
            Err(error) => Err(refused(Code::ShuttingDown, error.to_string())),
        }
    }

    async fn get_server_info(
        &self,
        _: Request<relay::GetServerInfoRequest>,
    ) -> Result<Response<relay::GetServerInfoResponse>, Status> {
        let limits = self.engine.limits();
        let up_for = Instant::now().saturating_duration_since(self.engine.started());
        Ok(Response::new(relay::GetServerInfoResponse {
            server_id: self.engine.server_id().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_versions: vec![PROTOCOL_VERSION],
            features: Vec::new(),
            up_for: Some(convert::duration_to_proto(up_for)),
            shutting_down: self.engine.is_leaving(),
            limits: Some(relay::ServerLimits {
                payload_bytes: limits.payload_bytes.as_u64(),
                default_timeout: Some(convert::duration_to_proto(limits.default_timeout)),
                max_timeout: Some(convert::duration_to_proto(limits.max_timeout)),
                queue_runs: u32::try_from(limits.queue_runs).unwrap_or(u32::MAX),
                queue_bytes: limits.queue_bytes.as_u64(),
            }),
            listeners: self.listeners.clone(),
        }))
    }
}

fn namespace(asked: &str) -> &str {
    if asked.is_empty() { "default" } else { asked }
}

fn agent(view: AgentView) -> relay::AgentSummary {
    relay::AgentSummary {
        name: view.name.to_string(),
        versions: view.versions,
        description: view.description,
        slots_ready: view.slots_ready,
        slots_busy: view.slots_busy,
        slots_other: view.slots_other,
        queued: view.queued,
        request_schema: view.request_schema,
        reply_schema: view.reply_schema,
        workers: view.workers,
        unreleased: view.unreleased,
    }
}

fn worker(view: WorkerView) -> relay::WorkerSummary {
    let offer = &view.offer;
    relay::WorkerSummary {
        info: Some(relay::WorkerInfo {
            worker_id: offer.worker.to_string(),
            name: offer.info.name.clone(),
            pid: offer.info.pid,
            host: offer.info.host.clone(),
            language: offer.info.language.clone(),
            sdk_version: offer.info.sdk_version.clone(),
            labels: offer.info.labels.clone().into_iter().collect(),
        }),
        agent: offer.agent.name.to_string(),
        agent_version: offer.version.clone(),
        heartbeats: offer.level == crate::slot::Level::Full,
        draining: view.draining,
        attached_for: Some(convert::duration_to_proto(view.attached_for)),
        peer: offer.peer.to_string(),
        slots: view.slots.iter().map(slot).collect(),
        unreleased: view.unreleased.iter().map(unreleased).collect(),
    }
}

fn slot(view: &SlotView) -> relay::SlotSummary {
    let state = match view.state {
        SlotStateView::Starting => relay::SlotState::Starting,
        SlotStateView::Ready => relay::SlotState::Ready,
        SlotStateView::Busy => relay::SlotState::Busy,
        SlotStateView::Stopping => relay::SlotState::Stopping,
    };
    relay::SlotSummary {
        slot_id: view.id.0,
        state: state.into(),
        in_state_for: Some(convert::duration_to_proto(view.in_state_for)),
        run_id: view
            .delivery
            .map(|held| held.run.to_string())
            .unwrap_or_default(),
        attempt: view.delivery.map(|held| held.attempt.0).unwrap_or_default(),
    }
}

fn unreleased(view: &UnreleasedView) -> relay::UnreleasedWork {
    relay::UnreleasedWork {
        run_id: view.delivery.run.to_string(),
        attempt: view.delivery.attempt.0,
        code: convert::code_to_proto(view.code).into(),
        ended_ago: Some(convert::duration_to_proto(view.ended_ago)),
        rung: rung_to_proto(view.rung).into(),
        rung_ago: Some(convert::duration_to_proto(view.rung_ago)),
    }
}
