//! A harness whose every frame is the test's own.

mod runs;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::attach_request::Frame as In;
use harness_proto::v1::attach_response::Frame as Out;
use harness_proto::v1::run_service_server::RunServiceServer;
use harness_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

pub(crate) use runs::{Asked, ManyAsked, Told};

/// The longest a test waits for anything.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("no {what} within {BOUND:?}"),
    }
}

/// A listening harness. Dropping it stops accepting.
pub(crate) struct Fake {
    pub(crate) address: String,
    calls: mpsc::Receiver<Call>,
    pub(crate) asks: mpsc::Receiver<Asked>,
    pub(crate) told: mpsc::Receiver<Told>,
    server: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Fake {
    pub(crate) async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let address = format!("http://{}", listener.local_addr().unwrap());
        Self::over(address, TcpListenerStream::new(listener))
    }

    pub(crate) fn over<S, C, E>(address: String, incoming: S) -> Self
    where
        S: tokio_stream::Stream<Item = Result<C, E>> + Send + 'static,
        C: tokio::io::AsyncRead
            + tokio::io::AsyncWrite
            + tonic::transport::server::Connected
            + Unpin
            + Send
            + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
        C::ConnectInfo: Clone + Send + Sync + 'static,
    {
        let (called, calls) = mpsc::channel(2000);
        let (asked, asks) = mpsc::channel(16);
        let (tell, told) = mpsc::channel(16);
        let server = Server::builder()
            .max_concurrent_streams(2000)
            .add_service(WorkerServiceServer::new(Attaching { called }))
            .add_service(RunServiceServer::new(runs::Asking { asked, tell }));
        let server = tokio::spawn(async move {
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self {
            address,
            calls,
            asks,
            told,
            server,
        }
    }

    /// The next call, its hello read.
    pub(crate) async fn call(&mut self) -> Call {
        within("call", self.calls.recv()).await.unwrap()
    }

    /// The next call, welcomed.
    pub(crate) async fn welcomed(&mut self) -> Call {
        let mut call = self.call().await;
        call.welcome().await;
        call
    }

    /// Whether a call has come that nobody took yet.
    pub(crate) fn has_call(&self) -> bool {
        !self.calls.is_empty()
    }
}

type Answer = Result<v1::AttachResponse, Status>;

/// One Attach call, from the harness's side.
pub(crate) struct Call {
    pub(crate) hello: v1::Hello,
    /// The connection it is on; None over a Unix socket.
    pub(crate) peer: Option<SocketAddr>,
    frames: Streaming<v1::AttachRequest>,
    /// The frame that accepted the request, when it says more than that.
    accepted: Option<In>,
    /// None resets the stream.
    answers: mpsc::Sender<Option<Answer>>,
}

impl Call {
    pub(crate) async fn send(&self, frame: Out) {
        let frame = v1::AttachResponse { frame: Some(frame) };
        self.answers.send(Some(Ok(frame))).await.unwrap();
    }

    pub(crate) async fn welcome(&mut self) {
        self.welcome_with(Duration::from_secs(5), v1::SlotLimits::default())
            .await;
    }

    pub(crate) async fn welcome_with(&mut self, interval: Duration, limits: v1::SlotLimits) {
        let welcome = v1::Welcome {
            slot_id: 1,
            server_id: "fake".to_owned(),
            heartbeat_interval: Some(interval.try_into().unwrap()),
            limits: Some(limits),
            ..Default::default()
        };
        self.send(Out::Welcome(welcome)).await;
    }

    /// Welcomes a hello that resumes, of which everything up to this number was taken.
    pub(crate) async fn welcome_back(&mut self, last_worker_seq: u64) {
        let welcome = v1::Welcome {
            heartbeat_interval: Some(Duration::from_secs(5).try_into().unwrap()),
            resume: Some(v1::Resumed {
                last_worker_seq,
                time_left: None,
            }),
            ..Default::default()
        };
        self.send(Out::Welcome(welcome)).await;
    }

    pub(crate) async fn acknowledge(&mut self, worker_seq: u64) {
        self.send(Out::Appended(v1::Appended { worker_seq })).await;
    }

    /// Sends a request and waits until it is accepted: by a heartbeat, which is taken, or by what
    /// the agent did at once, which the next frame is.
    pub(crate) async fn request(&mut self, run_id: &str, json: &str) {
        let request = v1::Request {
            run_id: run_id.to_owned(),
            attempt: 1,
            lease: lease(run_id),
            payload: Some(v1::Payload {
                content_type: String::new(),
                data: json.to_owned().into(),
            }),
            time_left: Some(Duration::from_secs(30).try_into().unwrap()),
            metadata: [("tenant".to_owned(), "a".to_owned())].into(),
            ..Default::default()
        };
        self.send(Out::Request(request)).await;
        let first = self.frame().await;
        let accepted = match &first {
            In::Heartbeat(heartbeat) => (heartbeat.run_id.as_str(), heartbeat.attempt),
            In::Append(append) => (append.run_id.as_str(), append.attempt),
            In::Reply(reply) => (reply.run_id.as_str(), reply.attempt),
            other => panic!("an acceptance, not {other:?}"),
        };
        assert_eq!(accepted, (run_id, 1));
        self.accepted = Some(first).filter(|first| !matches!(first, In::Heartbeat(_)));
    }

    /// The next frame; panics when the worker ended the call instead.
    pub(crate) async fn frame(&mut self) -> In {
        if let Some(accepted) = self.accepted.take() {
            return accepted;
        }
        let frame = within("frame", self.frames.message()).await;
        frame
            .unwrap()
            .expect("a frame, not a half-close")
            .frame
            .unwrap()
    }

    pub(crate) async fn reply(&mut self) -> v1::Reply {
        loop {
            match self.frame().await {
                In::Reply(reply) => return reply,
                In::Heartbeat(_) => {}
                other => panic!("a reply, not {other:?}"),
            }
        }
    }

    pub(crate) async fn value(&mut self) -> String {
        match self.reply().await.outcome.unwrap() {
            v1::reply::Outcome::Value(value) => String::from_utf8(value.data.to_vec()).unwrap(),
            other => panic!("a value, not {other:?}"),
        }
    }

    pub(crate) async fn error(&mut self) -> v1::Error {
        match self.reply().await.outcome.unwrap() {
            v1::reply::Outcome::Error(error) => error,
            other => panic!("an error, not {other:?}"),
        }
    }

    pub(crate) async fn append(&mut self) -> v1::Append {
        match self.frame().await {
            In::Append(append) => append,
            other => panic!("an append, not {other:?}"),
        }
    }

    /// Expects `leave` and the half-close, then ends the call with OK.
    pub(crate) async fn leaves(mut self) {
        let frame = self.frame().await;
        assert!(matches!(frame, In::Leave(_)), "leave, not {frame:?}");
        self.half_closes().await;
    }

    pub(crate) async fn half_closes(mut self) {
        let end = within("half-close", self.frames.message()).await.unwrap();
        assert!(end.is_none(), "a half-close, not {end:?}");
    }

    /// Waits until the connection has broken.
    pub(crate) async fn hangs_up(mut self) {
        within("broken connection", async {
            while self
                .frames
                .message()
                .await
                .is_ok_and(|frame| frame.is_some())
            {}
        })
        .await;
    }

    /// Waits until the worker has dropped the call.
    pub(crate) async fn dropped(self) {
        within("end of the call", self.answers.closed()).await;
    }

    pub(crate) async fn end(self, status: Status) {
        self.answers.send(Some(Err(status))).await.unwrap();
    }

    /// Resets the stream of this call and leaves its connection alone.
    pub(crate) async fn reset(self) {
        self.answers.send(None).await.unwrap();
    }
}

pub(crate) fn lease(run_id: &str) -> bytes::Bytes {
    bytes::Bytes::from(format!("lease of {run_id}"))
}

/// An end of the harness's own.
pub(crate) fn ours(code: Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "harness.v1", HashMap::new());
    Status::with_error_details(code, "the fake ended it", details)
}

/// What the hello says of the call before it.
pub(crate) fn released(call: &Call) -> Option<(&str, u32, &[u8])> {
    match call.hello.previous.as_ref()? {
        v1::hello::Previous::Released(it) => Some((&it.run_id, it.attempt, &it.lease)),
        v1::hello::Previous::Resume(it) => panic!("released, not {it:?}"),
    }
}

/// The run that the hello resumes.
pub(crate) fn resumed(call: &Call) -> Option<(&str, u32, &[u8])> {
    match call.hello.previous.as_ref()? {
        v1::hello::Previous::Resume(it) => Some((&it.run_id, it.attempt, &it.lease)),
        v1::hello::Previous::Released(it) => panic!("resumed, not {it:?}"),
    }
}

struct Attaching {
    called: mpsc::Sender<Call>,
}

#[tonic::async_trait]
impl WorkerService for Attaching {
    type AttachStream = Pin<Box<dyn Stream<Item = Answer> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let peer = request.remote_addr();
        let mut frames = request.into_inner();
        let Some(v1::AttachRequest {
            frame: Some(In::Hello(hello)),
        }) = frames.message().await?
        else {
            return Err(Status::invalid_argument("no hello"));
        };
        let (answers, stream) = mpsc::channel(100);
        self.called
            .send(Call {
                hello,
                peer,
                frames,
                accepted: None,
                answers,
            })
            .await
            .unwrap();
        // hyper resets the stream of a task that unwinds.
        let answers = ReceiverStream::new(stream)
            .map(|answer| answer.unwrap_or_else(|| std::panic::resume_unwind(Box::new("reset"))));
        Ok(Response::new(Box::pin(answers)))
    }
}
