//! One HTTP service for a connection: gRPC goes to its services, anything else to plain HTTP.
//!
//! Statuses that the library made itself, before our code saw the call, are made typed here.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Extensions, HeaderMap, Request, Response, header};
use bytes::Bytes;
use http_body::Body as HttpBody;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code as GrpcCode, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};
use tower_service::Service;

use harness_proto::relay::admin_service_server::AdminServiceServer;
use harness_proto::relay::run_service_server::RunServiceServer;
use harness_proto::relay::worker_service_server::WorkerServiceServer;

use crate::engine::Engine;
use crate::envelope::Code;

use super::admin_service::Admin;
use super::admission::Admission;
use super::attach_body::{AttachBody, AttachOutbox};
use super::health::Health;
use super::run_service::Runs;
use super::worker_service::Workers;
use super::{frames, http, status};

/// The address a connection came from.
#[derive(Clone, Debug)]
pub(crate) struct Peer(pub(crate) Arc<str>);

impl Peer {
    pub(super) fn of(extensions: &Extensions) -> Arc<str> {
        extensions
            .get::<Self>()
            .map_or_else(|| "unknown".into(), |peer| peer.0.clone())
    }
}

/// The service of one connection; cheap to clone.
#[derive(Clone)]
pub struct Router {
    routes: Routes,
    http: axum::Router,
    peer: Arc<str>,
}

/// Every service over `engine`. Sessions are tracked by `sessions`; `listeners` are told to
/// operators.
#[must_use]
pub fn router(engine: &Engine, sessions: TaskTracker, listeners: Vec<String>) -> Router {
    let limit = frames::decode_limit(engine.limits());
    let admission = Admission::new(engine.clone());
    let mut routes = Routes::builder();
    routes
        .add_service(
            WorkerServiceServer::new(Workers::new(engine.clone(), sessions.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(
            RunServiceServer::new(Runs::new(admission.clone(), sessions.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(AdminServiceServer::new(Admin::new(
            engine.clone(),
            listeners,
        )))
        .add_service(HealthServer::new(Health::new(engine.clone())))
        .add_service(reflection());
    Router {
        routes: routes.routes().prepare(),
        http: http::routes(admission, limit),
        peer: "unknown".into(),
    }
}

impl Router {
    /// The same for a connection from an address.
    #[must_use]
    pub fn for_peer(&self, peer: Arc<str>) -> Self {
        Self {
            routes: self.routes.clone(),
            http: self.http.clone(),
            peer,
        }
    }
}

impl<B> Service<Request<B>> for Router
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(Peer(self.peer.clone()));
        if !is_grpc(request.headers()) {
            let answer = self.http.call(request.map(axum::body::Body::new));
            return Box::pin(async move { Ok(answer.await?.map(Body::new)) });
        }
        let answer = self.routes.call(request);
        Box::pin(async move {
            let mut response = match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            if let Some(AttachOutbox(outbox)) = response.extensions_mut().remove() {
                return Ok(response.map(|body| Body::new(AttachBody::new(body, outbox))));
            }
            Ok(typed(response))
        })
    }
}

fn reflection() -> ServerReflectionServer<impl ServerReflection> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(harness_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptor sets must be whole")
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Gives a status without details, which is never ours, its typed form.
fn typed(response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    if headers.contains_key("grpc-status-details-bin") {
        return response;
    }
    let Some(status) = Status::from_header_map(headers) else {
        return response;
    };
    let code = match status.code() {
        GrpcCode::Ok => return response,
        GrpcCode::OutOfRange => Code::PayloadTooLarge,
        GrpcCode::Unimplemented => Code::Unimplemented,
        GrpcCode::Internal if status.message().contains("decode") => Code::InvalidRequest,
        _ => Code::Internal,
    };
    let message = match (code, status.message()) {
        (Code::Unimplemented, "") => "this harness has no such rpc",
        (_, message) => message,
    };
    status::refused(code, message).into_http()
}
