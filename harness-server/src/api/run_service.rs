//! `RunService`: what applications ask. Checks what a caller may send, then the engine has it.

use tonic::{Request, Response, Status, Streaming};

use harness_proto::relay;
use harness_proto::relay::run_service_server::RunService;

use crate::envelope::Code;

use super::admission::{Admission, Ask, Call};
use super::convert;
use super::status::{of_failure, refused};

/// Initial metadata that names the run.
const RUN_ID_HEADER: &str = "harness-run-id";

/// A stream of an rpc that is not served.
type Unserved<T> = tokio_stream::Empty<Result<T, Status>>;

/// The service.
pub(super) struct Runs {
    admission: Admission,
}

impl Runs {
    pub(super) fn new(admission: Admission) -> Self {
        Self { admission }
    }
}

#[tonic::async_trait]
impl RunService for Runs {
    type AskStreamStream = Unserved<relay::AskStreamResponse>;
    type AskManyStream = Unserved<relay::AskManyResponse>;
    type WatchRunStream = Unserved<relay::WatchRunResponse>;

    async fn ask(
        &self,
        request: Request<relay::AskRequest>,
    ) -> Result<Response<relay::AskResponse>, Status> {
        let (metadata, _, ask) = request.into_parts();
        let ask = Ask {
            agent: ask.agent,
            payload: ask.payload,
            options: ask.options,
        };
        let admitted = self
            .admission
            .admit(ask, Call::of(&metadata))
            .map_err(|failure| of_failure(&failure))?;
        let hung_up = self.admission.watch_hang_up();
        let asked = self
            .admission
            .engine()
            .ask(admitted.request, admitted.terms, admitted.placing);
        let run_id = asked.run().to_string();
        let answer = asked.answer().await;
        hung_up.answered();

        let header = run_id.parse().expect("a UUID must be valid metadata");
        match answer.outcome {
            Ok(value) => {
                let mut response = Response::new(relay::AskResponse {
                    run_id,
                    payload: Some(convert::payload_to_proto(value)),
                    attempt: answer.attempt.0,
                });
                response.metadata_mut().insert(RUN_ID_HEADER, header);
                Ok(response)
            }
            Err(failure) => {
                let mut status = of_failure(&failure);
                status.metadata_mut().insert(RUN_ID_HEADER, header);
                Err(status)
            }
        }
    }

    async fn ask_stream(
        &self,
        _: Request<relay::AskStreamRequest>,
    ) -> Result<Response<Self::AskStreamStream>, Status> {
        Err(unserved("AskStream"))
    }

    async fn ask_many(
        &self,
        _: Request<Streaming<relay::AskManyRequest>>,
    ) -> Result<Response<Self::AskManyStream>, Status> {
        Err(unserved("AskMany"))
    }

    async fn start_run(
        &self,
        _: Request<relay::StartRunRequest>,
    ) -> Result<Response<relay::StartRunResponse>, Status> {
        Err(unserved("StartRun"))
    }

    async fn get_run(
        &self,
        _: Request<relay::GetRunRequest>,
    ) -> Result<Response<relay::GetRunResponse>, Status> {
        Err(unserved("GetRun"))
    }

    async fn list_runs(
        &self,
        _: Request<relay::ListRunsRequest>,
    ) -> Result<Response<relay::ListRunsResponse>, Status> {
        Err(unserved("ListRuns"))
    }

    async fn cancel_run(
        &self,
        _: Request<relay::CancelRunRequest>,
    ) -> Result<Response<relay::CancelRunResponse>, Status> {
        Err(unserved("CancelRun"))
    }

    async fn watch_run(
        &self,
        _: Request<relay::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        Err(unserved("WatchRun"))
    }
}

pub(super) fn unserved(rpc: &str) -> Status {
    refused(
        Code::Unimplemented,
        format!("this harness does not serve {rpc} yet"),
    )
}
