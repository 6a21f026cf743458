//! One HTTP service for a connection: gRPC goes to its services, anything else gets a text that
//! says what this port is.
//!
//! Statuses that the library made itself, before our code saw the call, are made typed here.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Full};
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code as GrpcCode, Status};
use tower_service::Service;

use harness_proto::relay::admin_service_server::AdminServiceServer;
use harness_proto::relay::run_service_server::RunServiceServer;
use harness_proto::relay::worker_service_server::WorkerServiceServer;

use crate::engine::Engine;
use crate::envelope::Code;

use super::admin_service::Admin;
use super::admission::Admission;
use super::attach_body::{AttachBody, AttachOutbox};
use super::run_service::Runs;
use super::worker_service::Workers;
use super::{frames, status};

const WHAT_THIS_IS: &str = "This is a Harness server: it speaks gRPC (harness.v1) over HTTP/2 on \
this port.\nAsk with the `harness` command, an SDK, or any gRPC client.\n";

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
    peer: Arc<str>,
}

/// Every service over `engine`. Sessions are tracked by `sessions`; `listeners` are told to
/// operators.
#[must_use]
pub fn router(engine: &Engine, sessions: TaskTracker, listeners: Vec<String>) -> Router {
    let limit = frames::decode_limit(engine.limits());
    let mut routes = Routes::builder();
    routes
        .add_service(
            WorkerServiceServer::new(Workers::new(engine.clone(), sessions.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(
            RunServiceServer::new(Runs::new(Admission::new(engine.clone()), sessions.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(AdminServiceServer::new(Admin::new(
            engine.clone(),
            listeners,
        )));
    Router {
        routes: routes.routes().prepare(),
        peer: "unknown".into(),
    }
}

impl Router {
    /// The same for a connection from an address.
    #[must_use]
    pub fn for_peer(&self, peer: Arc<str>) -> Self {
        Self {
            routes: self.routes.clone(),
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
        if !is_grpc(request.headers()) {
            let response = plain(request.method(), request.uri().path());
            return Box::pin(std::future::ready(Ok(response)));
        }
        request.extensions_mut().insert(Peer(self.peer.clone()));
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

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn plain(method: &Method, path: &str) -> Response<Body> {
    let found = method == Method::GET && path == "/";
    let mut response = Response::new(Body::new(
        Full::new(Bytes::from_static(WHAT_THIS_IS.as_bytes()))
            .map_err(|never| -> Status { match never {} }),
    ));
    *response.status_mut() = if found {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
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
