//! A harness that does with each Attach call what the test says, and nothing else: for ends that a
//! real one makes seldom or never. For tests that are no async code.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use harness_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use harness_proto::v1::{
    AttachRequest, AttachResponse, Hello, Released, Request, SlotLimits, Welcome, attach_request,
    attach_response, hello,
};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Code, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use crate::loopback;
use crate::raw;
use crate::wait::BOUND;

const CALLS: usize = 64;
const FRAMES: usize = 8;

type Answer = Result<AttachResponse, Status>;

/// A running one.
pub struct Scripted {
    address: String,
    calls: mpsc::Receiver<Call>,
    runtime: Runtime,
}

/// A call whose hello has come. Dropping it ends it with OK.
pub struct Call {
    /// Its hello.
    pub hello: Hello,
    /// When that came.
    pub at: Instant,
    answers: mpsc::Sender<Answer>,
    #[expect(dead_code, reason = "keeps the call open")]
    frames: Streaming<AttachRequest>,
}

impl Scripted {
    /// Starts one on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When it cannot.
    #[track_caller]
    pub fn start() -> Self {
        let (runtime, listener, address) = loopback::listen();
        let (called, calls) = mpsc::channel(CALLS);
        let server = Server::builder()
            .add_service(WorkerServiceServer::new(Attaching { called }))
            .serve_with_incoming(TcpListenerStream::new(listener));
        runtime.spawn(server);
        Self {
            address,
            calls,
            runtime,
        }
    }

    /// Where it listens, host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The next call.
    ///
    /// # Panics
    /// When none comes within [`BOUND`].
    #[track_caller]
    pub fn call(&mut self) -> Call {
        let calls = &mut self.calls;
        let next = async { tokio::time::timeout(BOUND, calls.recv()).await };
        let next = self.runtime.block_on(next);
        next.expect("a call must come").expect("it serves")
    }

    /// Whether a call has come that was not taken.
    pub fn has_call(&self) -> bool {
        !self.calls.is_empty()
    }
}

impl Call {
    /// Welcomes the worker, with the usual limits.
    pub fn welcome(&self) {
        self.send(attach_response::Frame::Welcome(Welcome {
            slot_id: 1,
            server_id: "scripted".to_owned(),
            heartbeat_interval: Some(raw::proto(Duration::from_secs(5))),
            limits: Some(SlotLimits {
                unacked_entries: 64,
                unacked_bytes: 256 << 10,
                payload_bytes: 4 << 20,
                entry_bytes: 1 << 20,
            }),
            ..Welcome::default()
        }));
    }

    /// Sends the first attempt of a run.
    pub fn request(&self, run_id: &str, payload: &Value) {
        self.send(attach_response::Frame::Request(Request {
            run_id: run_id.to_owned(),
            attempt: 1,
            lease: lease(run_id).into(),
            payload: Some(raw::payload(&payload.to_string())),
            time_left: Some(raw::proto(Duration::from_secs(60))),
            ..Request::default()
        }));
    }

    /// Ends it.
    pub fn end(self, status: Status) {
        // A worker that has gone needs no end.
        drop(self.answers.blocking_send(Err(status)));
    }

    /// The run that its hello says has stopped, which must come with its lease.
    ///
    /// # Panics
    /// When the lease is another one.
    #[track_caller]
    pub fn released(&self) -> Option<&str> {
        match self.hello.previous.as_ref()? {
            hello::Previous::Released(Released {
                run_id,
                attempt,
                lease: proof,
            }) => {
                assert_eq!((*attempt, &proof[..]), (1, lease(run_id).as_bytes()));
                Some(run_id)
            }
            hello::Previous::Resume(_) => None,
        }
    }

    fn send(&self, frame: attach_response::Frame) {
        let frame = AttachResponse { frame: Some(frame) };
        drop(self.answers.blocking_send(Ok(frame)));
    }
}

fn lease(run_id: &str) -> String {
    format!("lease of {run_id}")
}

/// An end: the harness's own where it has a reason, with the least wait before the next call.
#[must_use]
pub fn end(code: Code, reason: Option<&str>, least: Option<Duration>) -> Status {
    let Some(reason) = reason else {
        return Status::new(code, "something in between made this");
    };
    let mut details = ErrorDetails::with_error_info(reason, "harness.v1", HashMap::new());
    if least.is_some() {
        details.set_retry_info(least);
    }
    Status::with_error_details(code, format!("the script says {reason}"), details)
}

struct Attaching {
    called: mpsc::Sender<Call>,
}

#[tonic::async_trait]
impl WorkerService for Attaching {
    type AttachStream = Pin<Box<dyn Stream<Item = Answer> + Send>>;

    async fn attach(
        &self,
        request: tonic::Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let mut frames = request.into_inner();
        let first = frames.message().await?.and_then(|first| first.frame);
        let Some(attach_request::Frame::Hello(hello)) = first else {
            return Err(Status::internal("a hello comes first"));
        };
        let (answers, outbound) = mpsc::channel(FRAMES);
        let call = Call {
            hello,
            at: Instant::now(),
            answers,
            frames,
        };
        let taken = self.called.send(call).await;
        taken.map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(outbound))))
    }
}
