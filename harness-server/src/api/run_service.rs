//! `RunService`: what applications ask. Checks what a caller may send, then the engine has it.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::{Extensions, Request, Response, Status, Streaming};

use harness_proto::relay;
use harness_proto::relay::run_service_server::RunService;

use crate::dispatch::RunView;
use crate::engine::Begun;
use crate::envelope::{Code, Failure};
use crate::ids::RunId;
use crate::store::Record;

use super::admission::{Admission, Admitted, Ask, Call};
use super::ending::Patience;
use super::router::Arrival;
use super::status::{of_failure, refused};
use super::streams::{self, Answers};
use super::{convert, ending, entries, many, starting};

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
        request: Request<relay::StartRunRequest>,
    ) -> Result<Response<relay::StartRunResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let call = call_of(metadata, &extensions);
        let patience = Patience::of(asked.wait_for_end.as_ref(), call.timeout)
            .map_err(|failure| of_failure(&failure))?;
        let started = async {
            let (admitted, start) = starting::admit(&self.admission, asked, call)?;
            let engine = self.admission.engine();
            let Admitted {
                request,
                terms,
                placing,
            } = admitted;
            match engine.start_run(request, terms, placing, start).await? {
                Begun::Made(record) => Ok(*record),
                Begun::Before(id) => {
                    let record = engine.record(id).await?;
                    record.ok_or_else(|| starting::gone(id))
                }
            }
        };
        let unconfirmed = || {
            let message = "the store did not confirm the run in time; it may be made all the same: \
                           ask again with the same idempotency_key";
            Box::new(Failure::new(Code::StoreUnavailable, message))
        };
        let run = match patience.keep(started, unconfirmed).await {
            Ok(record) => {
                let id = record.run.id;
                let told = ending::durable(self.admission.engine(), record, patience.end);
                patience.keep(told, || ending::untold(id)).await
            }
            Err(failure) => Err(failure),
        };
        let run = Some(run.map_err(|failure| of_failure(&failure))?);
        Ok(Response::new(relay::StartRunResponse { run }))
    }

    async fn get_run(
        &self,
        request: Request<relay::GetRunRequest>,
    ) -> Result<Response<relay::GetRunResponse>, Status> {
        let asked = request.get_ref();
        let patience = patience(asked.wait_for_end.as_ref(), request.extensions())?;
        let told = async {
            let mut found = self.find(&asked.run_id, &asked.namespace).await?;
            if let (Found::Interactive(id, _), Some(until)) = (&found, patience.end) {
                ending::interactive(self.admission.engine(), *id, until).await;
                found = self.find(&asked.run_id, &asked.namespace).await?;
            }
            self.told(found, patience.end).await
        };
        let untold = || of_failure(&ending::untold(&asked.run_id));
        let run = Some(patience.keep(told, untold).await?);
        Ok(Response::new(relay::GetRunResponse { run }))
    }

    async fn list_runs(
        &self,
        request: Request<relay::ListRunsRequest>,
    ) -> Result<Response<relay::ListRunsResponse>, Status> {
        let patience = patience(None, request.extensions())?;
        let untold = || {
            let message = "the store did not say in time which runs there are: ask again";
            Box::new(Failure::new(Code::StoreUnavailable, message))
        };
        let listed = starting::list(self.admission.engine(), request.into_inner());
        let listed = patience.keep(listed, untold).await;
        listed
            .map(Response::new)
            .map_err(|failure| of_failure(&failure))
    }

    async fn cancel_run(
        &self,
        request: Request<relay::CancelRunRequest>,
    ) -> Result<Response<relay::CancelRunResponse>, Status> {
        let patience = patience(None, request.extensions())?;
        let who = Arrival::principal(request.extensions()).subject();
        let asked = request.get_ref();
        let unconfirmed = || {
            let message = format!(
                "the store did not confirm in time that run {} is cancelled; it may be all the \
                 same: cancel it again, or ask for it with GetRun",
                asked.run_id
            );
            refused(Code::StoreUnavailable, message)
        };
        let cancelled = patience.keep(self.cancelled(asked, who), unconfirmed);
        let run = Some(cancelled.await?);
        Ok(Response::new(relay::CancelRunResponse { run }))
    }

    async fn watch_run(
        &self,
        request: Request<relay::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let asked = request.get_ref();
        let engine = self.admission.engine();
        let gone = || not_found(&asked.run_id);
        let (from, include_stop) = (asked.from_seq, asked.include_stop);
        let (id, namespace) = (run_id(&asked.run_id)?, namespace(&asked.namespace));
        if let Some(followed) = engine.follow_known(id, namespace, from) {
            let entries = streams::follow(engine.clone(), followed, include_stop);
            return Ok(Response::new(entries));
        }
        let patience = patience(None, request.extensions())?;
        let found = self.find(&asked.run_id, &asked.namespace);
        let untold = || of_failure(&ending::untold(&asked.run_id));
        let entries = match patience.keep(found, untold).await? {
            Found::Interactive(id, _) => {
                let watch = engine.watch(id).ok_or_else(gone)?;
                streams::watch(engine.clone(), watch, from, include_stop)
            }
            Found::Durable(record) => {
                let followed = engine.follow(record.run.id, from).ok_or_else(gone)?;
                streams::follow(engine.clone(), followed, include_stop)
            }
        };
        Ok(Response::new(entries))
    }
}

/// Longest reason of a cancel, in bytes.
const REASON_BYTES: usize = 1024;

/// A run, wherever it is kept.
enum Found {
    Interactive(RunId, Box<RunView>),
    Durable(Box<Record>),
}

impl Runs {
    /// A run as it is once it has been cancelled.
    async fn cancelled(
        &self,
        asked: &relay::CancelRunRequest,
        who: Arc<str>,
    ) -> Result<relay::Run, Status> {
        let engine = self.admission.engine();
        let found = self.find(&asked.run_id, &asked.namespace).await?;
        if asked.reason.len() > REASON_BYTES {
            let message = format!("reason has more than {REASON_BYTES} bytes");
            return Err(refused(Code::InvalidRequest, message));
        }
        let why = asked.reason.clone();
        match &found {
            Found::Interactive(id, _) => engine.cancel(*id, who, why),
            Found::Durable(record) if record.state.is_ended() => {}
            Found::Durable(record) => engine
                .cancel_run(record.run.id, who, why)
                .await
                .map_err(|failure| of_failure(&failure))?,
        }
        let found = self.find(&asked.run_id, &asked.namespace).await?;
        self.told(found, None).await
    }

    /// A run, a durable one as it ends where that is waited for.
    async fn told(&self, found: Found, until: Option<Instant>) -> Result<relay::Run, Status> {
        let engine = self.admission.engine();
        match found {
            Found::Interactive(id, view) => Ok(entries::run_to_proto(engine, id, *view)),
            Found::Durable(record) => ending::durable(engine, *record, until)
                .await
                .map_err(|failure| of_failure(&failure)),
        }
    }

    /// A run of a namespace.
    async fn find(&self, run_id: &str, namespace: &str) -> Result<Found, Status> {
        let (id, namespace) = (self::run_id(run_id)?, self::namespace(namespace));
        let engine = self.admission.engine();
        if let Some(view) = engine.run_view(id) {
            let view = Some(view).filter(|view| &*view.agent.namespace == namespace);
            let found = view.map(|view| Found::Interactive(id, Box::new(view)));
            return found.ok_or_else(|| not_found(run_id));
        }
        let record = starting::find(engine, id, namespace).await;
        record
            .map_err(|failure| of_failure(&failure))?
            .map(|record| Found::Durable(Box::new(record)))
            .ok_or_else(|| not_found(run_id))
    }
}

/// How long a call may take that can be made again whatever came of it.
fn patience(
    wait_for_end: Option<&prost_types::Duration>,
    extensions: &Extensions,
) -> Result<Patience, Status> {
    let patience = Patience::of(wait_for_end, Arrival::time_left(extensions));
    patience
        .map(Patience::bounded)
        .map_err(|failure| of_failure(&failure))
}

/// The run that a request names.
fn run_id(named: &str) -> Result<RunId, Status> {
    let id = named.parse().map(RunId);
    id.map_err(|_| refused(Code::InvalidRequest, "run_id must be the UUID of a run"))
}

/// The namespace that a request means.
fn namespace(named: &str) -> &str {
    match named {
        "" => "default",
        named => named,
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
