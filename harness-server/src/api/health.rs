//! `grpc.health.v1`, an agent's name being the service's: SERVING while a slot is attached that is
//! not leaving, or its pool is not crash-looping. Busy is serving. The empty name is the harness itself,
//! `harness.v1.RunService` its durable runs: NOT_SERVING while the store fails, or has no room for
//! what any run writes.

use futures_util::stream::unfold;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::engine::Engine;
use crate::envelope::Code;
use crate::ids::AgentKey;

use super::status::refused;
use super::streams::Answers;

/// The name of durable runs; no agent can have it.
const DURABLE: &str = "harness.v1.RunService";

/// The service.
pub(super) struct Health {
    engine: Engine,
}

impl Health {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl HealthService for Health {
    type WatchStream = Answers<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        match serving(&self.engine, service) {
            ServingStatus::ServiceUnknown => Err(refused(
                Code::UnknownAgent,
                format!("agent \"{service}\" is unknown"),
            )),
            status => Ok(Response::new(answer(status))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let engine = self.engine.clone();
        let watching = (engine.attached(), None);
        let statuses = unfold(watching, move |(mut changed, told)| {
            let (engine, service) = (engine.clone(), service.clone());
            async move {
                loop {
                    changed.mark_unchanged();
                    let status = serving(&engine, &service);
                    if told != Some(status) {
                        return Some((Ok(answer(status)), (changed, Some(status))));
                    }
                    changed.changed().await.ok()?;
                }
            }
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

/// How a service is: "", an agent's name, or namespace/agent.
fn serving(engine: &Engine, service: &str) -> ServingStatus {
    if service.is_empty() {
        return match engine.is_leaving() {
            true => ServingStatus::NotServing,
            false => ServingStatus::Serving,
        };
    }
    if service == DURABLE {
        return match engine.store_fails() {
            Some(_) => ServingStatus::NotServing,
            None => ServingStatus::Serving,
        };
    }
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    match engine.serves(&AgentKey::new(namespace, name)) {
        None => ServingStatus::ServiceUnknown,
        Some(true) => ServingStatus::Serving,
        Some(false) => ServingStatus::NotServing,
    }
}
