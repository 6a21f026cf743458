//! `WorkerService`: one Attach call is one session.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_stream::{Stream, StreamExt};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use harness_proto::relay;
use harness_proto::relay::worker_service_server::WorkerService;

use crate::engine::{Engine, Outbox};
use crate::session::Session;

use super::attach_body::AttachOutbox;
use super::router::Arrival;
use super::{frames, status};

/// The service.
pub(super) struct Workers {
    engine: Engine,
    sessions: TaskTracker,
}

impl Workers {
    pub(super) fn new(engine: Engine, sessions: TaskTracker) -> Self {
        Self { engine, sessions }
    }
}

#[tonic::async_trait]
impl WorkerService for Workers {
    type AttachStream = AttachStream;

    async fn attach(
        &self,
        request: Request<Streaming<relay::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let peer = Arrival::peer(request.extensions());
        let outbox = Arc::new(Outbox::default());
        let engine = self.engine.clone();
        let inbound = request
            .into_inner()
            .map(move |message| frames::incoming(message, engine.limits()));
        let session = Session::new(self.engine.clone(), outbox.clone(), peer);
        self.sessions.spawn(session.run(inbound));

        let stream = AttachStream {
            engine: self.engine.clone(),
            outbox: outbox.clone(),
        };
        let mut response = Response::new(stream);
        response.extensions_mut().insert(AttachOutbox(outbox));
        Ok(response)
    }
}

/// The frames and the end of one call, as tonic writes them.
pub(super) struct AttachStream {
    engine: Engine,
    outbox: Arc<Outbox>,
}

impl Stream for AttachStream {
    type Item = Result<relay::AttachResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.outbox.poll_next(cx).map(|next| match next? {
            Ok(frame) => Some(Ok(frames::outgoing(
                frame,
                self.engine.server_id(),
                self.engine.limits(),
            ))),
            Err(end) => status::of_end(&end).map(Err),
        })
    }
}

impl Drop for AttachStream {
    fn drop(&mut self) {
        if let Some(undelivered) = self.outbox.abandon() {
            self.engine.undelivered(undelivered);
        }
    }
}
