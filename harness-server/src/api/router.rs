//! One HTTP service for a connection: gRPC goes to its services, anything else to plain HTTP.
//!
//! Statuses that the library made itself, before our code saw the call, are made typed here.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::http::{Extensions, HeaderMap, HeaderName, Request, Response, header};
use bytes::Bytes;
use http_body::Body as HttpBody;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code as GrpcCode, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};
use tower_service::Service;
use tracing::{error, warn};

use harness_proto::relay::admin_service_server::AdminServiceServer;
use harness_proto::relay::run_service_server::{self, RunServiceServer};
use harness_proto::relay::worker_service_server::{self, WorkerServiceServer};

use crate::auth::{AUDIT, Auth, Entry, Principal};
use crate::engine::Engine;
use crate::envelope::{Code, Failure};
use crate::supervisor;

use super::admin_service::Admin;
use super::admission::Admission;
use super::attach_body::{AttachBody, AttachOutbox};
use super::health::Health;
use super::reply::Reply;
use super::run_service::Runs;
use super::timed_body::TimedBody;
use super::unary_body::UnaryBody;
use super::worker_service::Workers;
use super::{deadline, frames, http, status};

/// How a request came.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// The address of its connection.
    peer: Arc<str>,
    /// Who makes it.
    principal: Principal,
    /// When its headers came.
    at: Instant,
    /// How long its caller waits from then on.
    timeout: Option<Duration>,
}

impl Arrival {
    /// The address it came from.
    pub(super) fn peer(extensions: &Extensions) -> Arc<str> {
        extensions
            .get::<Self>()
            .map_or_else(|| "unknown".into(), |arrival| arrival.peer.clone())
    }

    /// Who makes it.
    pub(super) fn principal(extensions: &Extensions) -> Principal {
        extensions
            .get::<Self>()
            .map_or(Principal::Anonymous, |arrival| arrival.principal.clone())
    }

    /// What is left until the call's own deadline.
    pub(super) fn time_left(extensions: &Extensions) -> Option<Duration> {
        let arrival = extensions.get::<Self>()?;
        Some(arrival.timeout?.saturating_sub(arrival.at.elapsed()))
    }
}

/// The service of one connection; cheap to clone.
#[derive(Clone)]
pub struct Router {
    workers: WorkerServiceServer<Workers>,
    runs: RunServiceServer<Runs>,
    /// All other services.
    routes: Routes,
    http: axum::Router,
    admission: Admission,
    auth: Auth,
    entry: Entry,
    peer: Arc<str>,
}

/// Every service over `engine`. Sessions are tracked by `sessions`; `listeners` and `pools` are
/// told to operators; `auth` knows who calls.
#[must_use]
pub fn router(
    engine: &Engine,
    sessions: TaskTracker,
    listeners: Vec<String>,
    pools: supervisor::Handle,
    auth: Auth,
) -> Router {
    let limit = frames::decode_limit(engine.limits());
    let admission = Admission::new(engine.clone());
    let mut routes = Routes::builder();
    routes
        .add_service(AdminServiceServer::new(Admin::new(
            engine.clone(),
            listeners,
            pools.clone(),
        )))
        .add_service(HealthServer::new(Health::new(engine.clone())))
        .add_service(reflection());
    Router {
        workers: WorkerServiceServer::new(Workers::new(engine.clone(), sessions.clone()))
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX),
        runs: RunServiceServer::new(Runs::new(admission.clone(), sessions))
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX),
        routes: routes.routes().prepare(),
        http: http::routes(admission.clone(), pools, limit),
        admission,
        auth,
        entry: Entry::Open,
        peer: "unknown".into(),
    }
}

impl Router {
    /// The same for a connection that came by an entry from an address.
    #[must_use]
    pub fn for_connection(&self, entry: Entry, peer: Arc<str>) -> Self {
        Self {
            workers: self.workers.clone(),
            runs: self.runs.clone(),
            routes: self.routes.clone(),
            http: self.http.clone(),
            admission: self.admission.clone(),
            auth: self.auth.clone(),
            entry,
            peer,
        }
    }

    /// Who makes a call, if they may.
    fn let_in(&self, headers: &HeaderMap, path: &str) -> Result<Principal, Box<Failure>> {
        let authorization = headers.get(header::AUTHORIZATION);
        let authorization = authorization.map(|value| value.as_bytes());
        let principal = self.auth.principal(self.entry, authorization)?;
        let service = path.split('/').nth(1).filter(|_| is_grpc(headers));
        principal.may_call(service)?;
        Ok(principal)
    }
}

/// What whoever is not let in is answered.
fn turned_away(failure: &Failure, grpc: bool) -> Response<Body> {
    match grpc {
        true => status::of_failure(failure).into_http(),
        false => http::failed(failure).map(Body::new),
    }
}

impl<B> Service<Request<B>> for Router
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let arrived = Instant::now();
        let principal = match self.let_in(request.headers(), request.uri().path()) {
            Ok(principal) => principal,
            Err(failure) => {
                let (peer, path) = (&self.peer, request.uri().path());
                warn!(target: AUDIT, %peer, path, "refused: {}", failure.message);
                let answer = turned_away(&failure, is_grpc(request.headers()));
                return Box::pin(std::future::ready(Ok(answer.map(Reply::Whole))));
            }
        };
        let timeout = deadline::of_headers(request.headers());
        request.extensions_mut().insert(Arrival {
            peer: self.peer.clone(),
            principal,
            at: arrived,
            timeout,
        });
        let hung_up = self.admission.watch_hang_up();
        let engine = self.admission.engine().clone();
        let body_timeout = engine.limits().body_timeout;
        if !is_grpc(request.headers()) {
            let due = arrived + body_timeout;
            let request = request.map(|body| axum::body::Body::new(TimedBody::new(body, due)));
            let answer = self.http.call(request);
            return Box::pin(async move {
                let response = answer.await?.map(|body| Reply::Whole(Body::new(body)));
                hung_up.answered();
                Ok(response)
            });
        }
        let due = arrived + timeout.map_or(body_timeout, |timeout| timeout.min(body_timeout));
        let shape = Shape::of(request.uri().path());
        let answer = self.grpc(shape, request, due);
        Box::pin(async move {
            let mut response = match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            hung_up.answered();
            if let Some(AttachOutbox(outbox)) = response.extensions_mut().remove() {
                return Ok(response.map(|body| Reply::Attach(AttachBody::new(body, outbox))));
            }
            let response = typed(response, &engine);
            Ok(match shape.answers_once {
                true => response.map(|body| Reply::Once(UnaryBody::new(body, body_timeout))),
                false => response.map(Reply::Whole),
            })
        })
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Router {
    /// Calls the service. The two that all the traffic is for are found here: the library's way to
    /// find one costs more than all we do about an ask.
    fn grpc<B>(&mut self, shape: Shape, request: Request<B>, due: Instant) -> Answering
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let timed = |request: Request<B>| request.map(|body| TimedBody::new(body, due));
        match (shape.service, shape.asks_once) {
            (Called::Workers, _) => self.workers.call(request),
            (Called::Runs, true) => self.runs.call(timed(request)),
            (Called::Runs, false) => self.runs.call(request),
            (Called::Another, true) => Box::pin(self.routes.call(timed(request).map(Body::new))),
            (Called::Another, false) => Box::pin(self.routes.call(request.map(Body::new))),
        }
    }
}

fn reflection() -> ServerReflectionServer<impl ServerReflection> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(harness_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptor sets must be whole")
}

/// Whose an rpc is.
#[derive(Clone, Copy)]
enum Called {
    Workers,
    Runs,
    Another,
}

/// Whose an rpc is, and how many messages go each way. A stream may take as long as it likes.
#[derive(Clone, Copy)]
struct Shape {
    service: Called,
    asks_once: bool,
    answers_once: bool,
}

impl Shape {
    fn of(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let (service, rpc) = path.split_once('/').unwrap_or((path, ""));
        let (asks_once, answers_once) = match rpc {
            "Attach" | "AskMany" | "ServerReflectionInfo" => (false, false),
            "AskStream" | "WatchRun" | "Watch" => (true, false),
            _ => (true, true),
        };
        Self {
            service: match service {
                worker_service_server::SERVICE_NAME => Called::Workers,
                run_service_server::SERVICE_NAME => Called::Runs,
                _ => Called::Another,
            },
            asks_once,
            answers_once,
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

const STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Gives a status without details, which is never ours, its typed form.
fn typed(response: Response<Body>, engine: &Engine) -> Response<Body> {
    let headers = response.headers();
    if headers.contains_key(&STATUS_DETAILS) {
        return response;
    }
    let Some(status) = Status::from_header_map(headers) else {
        return response;
    };
    let (code, message) = match status.code() {
        GrpcCode::Ok => return response,
        GrpcCode::OutOfRange => {
            let limit = engine.limits().frame_bytes();
            let message =
                format!("the request message is over the limit of {limit} bytes: send less");
            (Code::PayloadTooLarge, message)
        }
        GrpcCode::Unimplemented => {
            let message = "this harness has no such rpc: is the client newer than the server?";
            (Code::Unimplemented, message.to_owned())
        }
        // Only the reading of a request fails so before our code sees it.
        GrpcCode::Internal => (Code::InvalidRequest, status.message().to_owned()),
        other => {
            let id = uuid::Uuid::new_v4();
            error!(%id, code = ?other, message = status.message(), "a call failed within the library");
            (
                Code::Internal,
                format!("a fault of the harness; its log has it as {id}"),
            )
        }
    };
    status::refused(code, message).into_http()
}
