//! The bare server.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use harness_proto::v1;
use harness_proto::v1::run_service_server::{RunService, RunServiceServer};
use harness_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::relay::{Asker, Relay};

/// What one slot's channel holds; there is one request at a time.
const SLOT_FRAMES: usize = 4;
/// Asks of one AskMany call that may be open; the load keeps fewer.
const MANY_OPEN: usize = 4096;
/// Streams of one connection.
const STREAMS: u32 = 4096;

/// Serves on a free port, which is told on standard error, until the process is killed.
pub(crate) async fn run() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    crate::tell(&format!("listening on {address}"));
    let incoming = TcpListenerStream::new(listener).map(|stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(stream)
    });
    let floor = Floor::default();
    Server::builder()
        .max_concurrent_streams(STREAMS)
        .add_service(RunServiceServer::new(floor.clone()))
        .add_service(WorkerServiceServer::new(floor))
        .serve_with_incoming(incoming)
        .await
        .expect("the floor must serve");
}

#[derive(Clone, Default)]
struct Floor(Relay);

static NEXT_SLOT: AtomicU64 = AtomicU64::new(1);

/// Ends the slot's call when a caller has hung up.
struct Open<'a> {
    relay: &'a Relay,
    id: Option<u32>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.relay.end(id);
        }
    }
}

/// As the harness's, which has these fields.
fn welcome(slot: u64) -> v1::AttachResponse {
    let welcome = v1::Welcome {
        slot_id: slot,
        server_id: uuid::Uuid::nil().to_string(),
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 5,
            nanos: 0,
        }),
        limits: Some(v1::SlotLimits {
            unacked_entries: 64,
            unacked_bytes: 256 << 10,
            payload_bytes: 4 << 20,
            entry_bytes: 1 << 20,
        }),
        ..v1::Welcome::default()
    };
    v1::AttachResponse {
        frame: Some(v1::attach_response::Frame::Welcome(welcome)),
    }
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerService for Floor {
    type AttachStream = ReceiverStream<Result<v1::AttachResponse, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (worker, frames) = mpsc::channel(SLOT_FRAMES);
        let slot = NEXT_SLOT.fetch_add(1, Ordering::Relaxed);
        let relay = self.0.clone();
        let mut inbound = request.into_inner();
        tokio::spawn(async move {
            // Its hello, which any relay has to be told and to answer.
            let Ok(Some(_)) = inbound.message().await else {
                return;
            };
            drop(worker.try_send(Ok(welcome(slot))));
            relay.free(slot, worker);
            while let Ok(Some(message)) = inbound.message().await {
                if let Some(v1::attach_request::Frame::Reply(reply)) = message.frame
                    && let Some(v1::reply::Outcome::Value(value)) = reply.outcome
                {
                    relay.answer(reply.attempt, value);
                }
            }
            relay.gone(slot);
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}

#[tonic::async_trait]
impl RunService for Floor {
    type AskStreamStream = Boxed<v1::AskStreamResponse>;
    type AskManyStream = Boxed<v1::AskManyResponse>;
    type WatchRunStream = Boxed<v1::WatchRunResponse>;

    async fn ask(
        &self,
        request: Request<v1::AskRequest>,
    ) -> Result<Response<v1::AskResponse>, Status> {
        let payload = request.into_inner().payload.unwrap_or_default();
        let (answer, answered) = oneshot::channel();
        let id = self.0.ask(payload, Asker::One(answer));
        let mut open = Open {
            relay: &self.0,
            id: Some(id),
        };
        let payload = answered
            .await
            .map_err(|_| Status::unavailable("the worker is gone"))?;
        open.id = None;
        Ok(Response::new(v1::AskResponse {
            run_id: String::new(),
            payload: Some(payload),
            attempt: 1,
        }))
    }

    async fn ask_many(
        &self,
        request: Request<Streaming<v1::AskManyRequest>>,
    ) -> Result<Response<Self::AskManyStream>, Status> {
        let (answers, answered) = mpsc::channel(MANY_OPEN);
        let mut inbound = request.into_inner();
        let relay = self.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = inbound.message().await {
                if let Some(v1::ask_many_request::Frame::Ask(ask)) = message.frame {
                    let asker = Asker::Tagged(ask.tag, answers.clone());
                    relay.ask(ask.payload.unwrap_or_default(), asker);
                }
            }
        });
        let outbound = ReceiverStream::new(answered).map(|(tag, payload)| {
            let outcome = v1::Outcome {
                outcome: Some(v1::outcome::Outcome::Value(payload)),
            };
            let answer = v1::Answer {
                tag,
                outcome: Some(outcome),
                ..v1::Answer::default()
            };
            Ok(v1::AskManyResponse {
                frame: Some(v1::ask_many_response::Frame::Answer(answer)),
            })
        });
        Ok(Response::new(Box::pin(outbound)))
    }

    /// Ends all that is worked on: who measures a cancel has one ask open.
    async fn cancel_run(
        &self,
        _: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        self.0.end_all();
        Ok(Response::new(v1::CancelRunResponse::default()))
    }

    async fn ask_stream(
        &self,
        _: Request<v1::AskStreamRequest>,
    ) -> Result<Response<Self::AskStreamStream>, Status> {
        Err(unserved())
    }

    async fn start_run(
        &self,
        _: Request<v1::StartRunRequest>,
    ) -> Result<Response<v1::StartRunResponse>, Status> {
        Err(unserved())
    }

    async fn get_run(
        &self,
        _: Request<v1::GetRunRequest>,
    ) -> Result<Response<v1::GetRunResponse>, Status> {
        Err(unserved())
    }

    async fn list_runs(
        &self,
        _: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        Err(unserved())
    }

    async fn watch_run(
        &self,
        _: Request<v1::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        Err(unserved())
    }
}

fn unserved() -> Status {
    Status::unimplemented("the floor does not serve this")
}
