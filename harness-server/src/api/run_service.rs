//! `RunService`: what applications ask. Checks what a caller may send, then the engine has it.

use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::{Extensions, Request, Response, Status, Streaming};

use harness_proto::relay;
use harness_proto::relay::run_service_server::RunService;

use crate::dispatch::RunView;
use crate::envelope::Code;
use crate::ids::RunId;

use super::admission::{Admission, Ask, Call};
use super::status::{of_failure, refused};
use super::streams::{self, Answers};
use super::{convert, entries, many};

/// Initial metadata that names the run.
const RUN_ID_HEADER: &str = "harness-run-id";

/// The service.
pub(super) struct Runs {
    admission: Admission,
    tasks: TaskTracker,
}

impl Runs {
    /// Calls that need a task of their own have it tracked by `tasks`.
    pub(super) fn new(admission: Admission, tasks: TaskTracker) -> Self {
        Self { admission, tasks }
    }
}

#[tonic::async_trait]
impl RunService for Runs {
    type AskStreamStream = Answers<relay::AskStreamResponse>;
    type AskManyStream = Answers<relay::AskManyResponse>;
    type WatchRunStream = Answers<relay::WatchRunResponse>;

    async fn ask(
        &self,
        request: Request<relay::AskRequest>,
    ) -> Result<Response<relay::AskResponse>, Status> {
        self.admission.turn().await;
        let (metadata, extensions, ask) = request.into_parts();
        let ask = Ask {
            agent: ask.agent,
            payload: ask.payload,
            options: ask.options,
        };
        let admitted = self
            .admission
            .admit(ask, call_of(metadata, &extensions))
            .map_err(|failure| of_failure(&failure))?;
        let asked = self
            .admission
            .engine()
            .ask(admitted.request, admitted.terms, admitted.placing);
        let run_id = asked.run().to_string();
        let answer = asked.answer().await;

        let header = header(&run_id);
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
        request: Request<relay::AskStreamRequest>,
    ) -> Result<Response<Self::AskStreamStream>, Status> {
        let (metadata, extensions, ask) = request.into_parts();
        let ask = Ask {
            agent: ask.agent,
            payload: ask.payload,
            options: ask.options,
        };
        let mut admitted = self
            .admission
            .admit(ask, call_of(metadata, &extensions))
            .map_err(|failure| of_failure(&failure))?;
        admitted.placing.paced = true;
        let hung_up = self.admission.watch_hang_up();
        let engine = self.admission.engine();
        let (asked, watch) = engine.ask_watched(admitted.request, admitted.terms, admitted.placing);
        let run_id = asked.run().to_string();
        let answers = streams::ask(engine.clone(), asked, watch, hung_up);
        let mut response = Response::new(answers);
        response
            .metadata_mut()
            .insert(RUN_ID_HEADER, header(&run_id));
        Ok(response)
    }

    async fn ask_many(
        &self,
        request: Request<Streaming<relay::AskManyRequest>>,
    ) -> Result<Response<Self::AskManyStream>, Status> {
        let (metadata, extensions, inbound) = request.into_parts();
        let call = call_of(metadata, &extensions);
        let (answers, reading) = many::serve(self.admission.clone(), call, inbound);
        self.tasks.spawn(reading);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn start_run(
        &self,
        _: Request<relay::StartRunRequest>,
    ) -> Result<Response<relay::StartRunResponse>, Status> {
        Err(unserved("StartRun"))
    }

    async fn get_run(
        &self,
        request: Request<relay::GetRunRequest>,
    ) -> Result<Response<relay::GetRunResponse>, Status> {
        let asked = request.get_ref();
        let (id, view) = self.find(&asked.run_id, &asked.namespace)?;
        let run = Some(entries::run_to_proto(self.admission.engine(), id, view));
        Ok(Response::new(relay::GetRunResponse { run }))
    }

    async fn list_runs(
        &self,
        _: Request<relay::ListRunsRequest>,
    ) -> Result<Response<relay::ListRunsResponse>, Status> {
        Err(unserved("ListRuns"))
    }

    async fn cancel_run(
        &self,
        request: Request<relay::CancelRunRequest>,
    ) -> Result<Response<relay::CancelRunResponse>, Status> {
        let asked = request.into_inner();
        let engine = self.admission.engine();
        let (id, _) = self.find(&asked.run_id, &asked.namespace)?;
        if asked.reason.len() > REASON_BYTES {
            let message = format!("reason has more than {REASON_BYTES} bytes");
            return Err(refused(Code::InvalidRequest, message));
        }
        engine.cancel(id, "anonymous".into(), asked.reason);
        let (id, view) = self.find(&asked.run_id, &asked.namespace)?;
        let run = Some(entries::run_to_proto(engine, id, view));
        Ok(Response::new(relay::CancelRunResponse { run }))
    }

    async fn watch_run(
        &self,
        request: Request<relay::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let asked = request.get_ref();
        let engine = self.admission.engine();
        let (id, _) = self.find(&asked.run_id, &asked.namespace)?;
        let watch = engine.watch(id).ok_or_else(|| not_found(&asked.run_id))?;
        let entries = streams::watch(engine.clone(), watch, asked.from_seq, asked.include_stop);
        Ok(Response::new(entries))
    }
}

/// Longest reason of a cancel, in bytes.
const REASON_BYTES: usize = 1024;

impl Runs {
    /// A run of a namespace.
    fn find(&self, run_id: &str, namespace: &str) -> Result<(RunId, RunView), Status> {
        let id = run_id
            .parse()
            .map(RunId)
            .map_err(|_| refused(Code::InvalidRequest, "run_id must be the UUID of a run"))?;
        let namespace = if namespace.is_empty() {
            "default"
        } else {
            namespace
        };
        self.admission
            .engine()
            .run_view(id)
            .filter(|view| &*view.agent.namespace == namespace)
            .map(|view| (id, view))
            .ok_or_else(|| not_found(run_id))
    }
}

fn call_of(metadata: MetadataMap, extensions: &Extensions) -> Call {
    Call::of(&metadata.into_headers(), extensions)
}

fn not_found(run_id: &str) -> Status {
    let message = format!(
        "run {run_id} is not known in this namespace: interactive runs are kept for a short while \
         after their end"
    );
    refused(Code::RunNotFound, message)
}

fn header(run_id: &str) -> MetadataValue<Ascii> {
    let mut header: MetadataValue<Ascii> = run_id.parse().expect("a UUID must be valid metadata");
    // Kept out of the header tables of both ends: it never comes again.
    header.set_sensitive(true);
    header
}

pub(super) fn unserved(rpc: &str) -> Status {
    refused(
        Code::Unimplemented,
        format!("this harness does not serve {rpc} yet"),
    )
}
