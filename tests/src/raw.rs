//! Bare protocol peers over the generated stubs, and a harness inside the test's own process.

mod resuming;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::admin_service_client::AdminServiceClient;
use harness_proto::v1::run_service_client::RunServiceClient;
use harness_proto::v1::worker_service_client::WorkerServiceClient;
use harness_proto::v1::{
    self, AgentInfo, AskRequest, AttachRequest, AttachResponse, Hello, Payload, Reply, Request,
    RunOptions, WorkerInfo, attach_request, attach_response, reply,
};
use harness_server::store::Store;
use harness_server::{Config, Limits, Server};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_types::pb;
use uuid::Uuid;

use crate::wait::eventually_async;

pub use resuming::resuming;

/// How long a test waits for what should come at once.
pub const SOON: Duration = Duration::from_secs(5);

/// A harness in this process, on a port of its own.
pub struct Embedded {
    /// Its address, `127.0.0.1:port`.
    pub address: String,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts one with the default limits.
    pub async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    /// Starts one with other limits.
    pub async fn with(limits: Limits) -> Self {
        Self::storing(limits, None).await
    }

    /// Starts one with other limits and a store.
    pub async fn storing(limits: Limits, store: Option<Arc<dyn Store>>) -> Self {
        let listen = vec!["127.0.0.1:0".to_owned()];
        let config = Config {
            listen,
            limits,
            ..Config::default()
        };
        let server = Server::bind_with(config, store)
            .await
            .expect("port 0 can be bound");
        let address = server.addresses()[0].clone();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(stop.clone()));
        Self {
            address,
            stop,
            task: Some(task),
        }
    }

    /// One that somebody else started and stops.
    #[must_use]
    pub fn at(address: String) -> Self {
        Self {
            address,
            stop: CancellationToken::new(),
            task: None,
        }
    }

    /// A connection of its own.
    pub async fn connect(&self) -> Channel {
        connect(&self.address).await
    }

    /// Tells it to leave; it does so while the test goes on.
    pub fn leave(&self) {
        self.stop.cancel();
    }

    /// Tells it to leave and waits until it has.
    pub async fn left(mut self) {
        self.stop.cancel();
        let task = self.task.take().expect("a harness must leave only once");
        within(Duration::from_secs(40), task)
            .await
            .expect("the harness must not panic");
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A connection to `host:port` or `unix:/absolute/path`.
pub async fn connect(address: &str) -> Channel {
    let address = match address.strip_prefix("unix:") {
        Some(path) => format!("unix://{path}"),
        None => format!("http://{address}"),
    };
    Endpoint::from_shared(address)
        .expect("a valid address")
        .tcp_nodelay(true)
        .connect()
        .await
        .expect("the harness listens")
}

/// Waits for something that must come within a bound.
pub async fn within<T>(bound: Duration, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(bound, what)
        .await
        .expect("it must come within its bound")
}

/// Asks again and again until `condition` holds, within a bound.
pub async fn eventually<F, Fut>(bound: Duration, what: &str, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let asked = || {
        let holds = condition();
        async move { holds.await.then_some(()) }
    };
    eventually_async(what, bound, asked).await;
}

/// A worker without an SDK: it sends what the test says, right or wrong.
pub struct RawSlot {
    frames: Option<mpsc::Sender<AttachRequest>>,
    /// What the harness sends.
    pub inbound: Streaming<AttachResponse>,
}

impl RawSlot {
    /// Opens a call and sends nothing.
    pub async fn open(channel: Channel) -> Self {
        Self::open_as(channel, None).await.expect("the call opens")
    }

    /// Opens a call that shows an `authorization` and sends nothing.
    ///
    /// # Errors
    /// The status of a call that is refused before its first frame.
    pub async fn open_as(channel: Channel, authorization: Option<&str>) -> Result<Self, Status> {
        let (frames, outbound) = mpsc::channel(256);
        let mut client = WorkerServiceClient::new(channel).max_decoding_message_size(64 << 20);
        let mut request = tonic::Request::new(ReceiverStream::new(outbound));
        if let Some(authorization) = authorization {
            let value = authorization.parse().expect("visible letters");
            request.metadata_mut().insert("authorization", value);
        }
        let response = within(SOON, client.attach(request)).await?;
        Ok(Self {
            frames: Some(frames),
            inbound: response.into_inner(),
        })
    }

    /// Opens a call, says hello and is welcomed.
    pub async fn attach(channel: Channel, hello: Hello) -> Self {
        let mut slot = Self::open(channel).await;
        slot.send(attach_request::Frame::Hello(hello)).await;
        match slot.next().await {
            attach_response::Frame::Welcome(_) => slot,
            other => panic!("expected welcome, got {other:?}"),
        }
    }

    /// Sends a frame.
    pub async fn send(&self, frame: attach_request::Frame) {
        let frames = self
            .frames
            .as_ref()
            .expect("the call must not be half-closed");
        let frame = AttachRequest { frame: Some(frame) };
        // A call that has just ended takes nothing; the test sees the end.
        drop(frames.send(frame).await);
    }

    /// Sends a frame of no known case.
    pub async fn send_unknown(&self) {
        let frames = self
            .frames
            .as_ref()
            .expect("the call must not be half-closed");
        drop(frames.send(AttachRequest { frame: None }).await);
    }

    /// Sends nothing more.
    pub fn half_close(&mut self) {
        self.frames = None;
    }

    /// The next frame, which must come soon.
    pub async fn next(&mut self) -> attach_response::Frame {
        let message = within(SOON, self.inbound.message()).await;
        let message = message
            .expect("a frame, not the end")
            .expect("a frame, not OK");
        message.frame.expect("a known frame")
    }

    /// The next request; heartbeats and acknowledgements before it are passed over.
    pub async fn request(&mut self) -> Request {
        loop {
            match self.next().await {
                attach_response::Frame::Request(request) => return request,
                attach_response::Frame::Heartbeat(_) | attach_response::Frame::Appended(_) => {}
                other => panic!("expected a request, got {other:?}"),
            }
        }
    }

    /// Waits until this number of the request in hand is acknowledged.
    pub async fn acknowledged(&mut self, seq: u64) {
        loop {
            match self.next().await {
                attach_response::Frame::Appended(appended) if appended.worker_seq >= seq => return,
                attach_response::Frame::Appended(_) | attach_response::Frame::Heartbeat(_) => {}
                other => panic!("expected appended, got {other:?}"),
            }
        }
    }

    /// The end of the call, which must come within a bound; frames before it are passed over.
    pub async fn end_within(&mut self, bound: Duration) -> Result<(), Status> {
        within(bound, async {
            loop {
                match self.inbound.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(()),
                    Err(status) => return Err(status),
                }
            }
        })
        .await
    }

    /// The status the call ends with soon.
    pub async fn end(&mut self) -> Status {
        self.end_within(SOON)
            .await
            .expect_err("an end that is not OK")
    }

    /// Answers a request with a JSON text.
    pub async fn reply(&self, request: &Request, json: &str) {
        self.reply_as(request, 1, reply::Outcome::Value(payload(json)))
            .await;
    }

    /// Answers a request in any way.
    pub async fn reply_as(&self, request: &Request, worker_seq: u64, outcome: reply::Outcome) {
        self.send(attach_request::Frame::Reply(Reply {
            run_id: request.run_id.clone(),
            attempt: request.attempt,
            worker_seq,
            outcome: Some(outcome),
        }))
        .await;
    }
}

/// A hello of a minimal worker for an agent.
#[must_use]
pub fn hello(agent: &str) -> Hello {
    Hello {
        protocol_version: 1,
        worker: Some(WorkerInfo {
            worker_id: Uuid::new_v4().to_string(),
            name: format!("{agent}-raw"),
            ..WorkerInfo::default()
        }),
        agent: Some(AgentInfo {
            name: agent.to_owned(),
            ..AgentInfo::default()
        }),
        ..Hello::default()
    }
}

/// A hello of a full level worker for an agent.
#[must_use]
pub fn full_hello(agent: &str) -> Hello {
    Hello {
        heartbeats: true,
        ..hello(agent)
    }
}

/// A JSON payload.
#[must_use]
pub fn payload(json: &str) -> Payload {
    Payload {
        content_type: String::new(),
        data: json.to_owned().into(),
    }
}

/// An ask with a timeout.
#[must_use]
pub fn ask(agent: &str, json: &str, timeout: Duration) -> AskRequest {
    AskRequest {
        agent: agent.to_owned(),
        payload: Some(payload(json)),
        options: Some(RunOptions {
            timeout: Some(proto(timeout)),
            ..RunOptions::default()
        }),
    }
}

/// A client of `RunService`.
#[must_use]
pub fn runs(channel: &Channel) -> RunServiceClient<Channel> {
    RunServiceClient::new(channel.clone()).max_decoding_message_size(64 << 20)
}

/// A client of `AdminService`.
#[must_use]
pub fn admin(channel: &Channel) -> AdminServiceClient<Channel> {
    AdminServiceClient::new(channel.clone())
}

/// A duration of the wire.
#[must_use]
pub fn proto(duration: Duration) -> prost_types::Duration {
    duration.try_into().expect("a duration of the wire")
}

/// What the details of one of our statuses hold.
#[derive(Debug, Default)]
pub struct Details {
    /// `harness.v1.Error`.
    pub error: Option<v1::Error>,
    /// Reason and domain of `google.rpc.ErrorInfo`.
    pub info: Option<(String, String)>,
    /// Whether there is a `google.rpc.RetryInfo`.
    pub retry: bool,
}

/// Reads the details of a status.
#[must_use]
pub fn details(status: &Status) -> Details {
    let mut found = Details::default();
    let whole = pb::Status::decode(status.details()).expect("details are a google.rpc.Status");
    for any in whole.details {
        match any.type_url.rsplit('/').next() {
            Some("harness.v1.Error") => {
                found.error = Some(v1::Error::decode(&*any.value).expect("an Error"));
            }
            Some("google.rpc.ErrorInfo") => {
                let info = pb::ErrorInfo::decode(&*any.value).expect("an ErrorInfo");
                found.info = Some((info.reason, info.domain));
            }
            Some("google.rpc.RetryInfo") => found.retry = true,
            other => panic!("unexpected detail {other:?}"),
        }
    }
    found
}

/// The typed error of a failed ask; its status and code must agree with the expected ones.
#[must_use]
pub fn typed(status: &Status, grpc: Code, code: v1::ErrorCode) -> v1::Error {
    let found = details(status)
        .error
        .unwrap_or_else(|| panic!("no Error in {status:?}"));
    assert_eq!(
        (status.code(), found.code()),
        (grpc, code),
        "{}",
        found.message
    );
    found
}

/// The stable reason of an end of ours.
#[must_use]
pub fn reason(status: &Status) -> String {
    let (reason, domain) = details(status)
        .info
        .unwrap_or_else(|| panic!("no info in {status:?}"));
    assert_eq!(domain, "harness.v1");
    reason
}

/// Asks in the background, over a connection of its own.
pub async fn asking(
    harness: &Embedded,
    agent: &str,
    timeout: Duration,
) -> JoinHandle<Result<v1::AskResponse, Status>> {
    asking_for(harness, ask(agent, "\"hi\"", timeout)).await
}

/// Makes an ask in the background, over a connection of its own.
pub async fn asking_for(
    harness: &Embedded,
    request: AskRequest,
) -> JoinHandle<Result<v1::AskResponse, Status>> {
    let mut client = runs(&harness.connect().await);
    tokio::spawn(async move { client.ask(request).await.map(tonic::Response::into_inner) })
}

/// An append that holds an output piece of so many characters.
#[must_use]
pub fn output(request: &Request, worker_seq: u64, characters: usize) -> attach_request::Frame {
    let piece = payload(&format!("\"{}\"", "x".repeat(characters)));
    attach_request::Frame::Append(v1::Append {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        worker_seq,
        entry: Some(v1::Entry {
            kind: Some(v1::entry::Kind::Output(v1::Output {
                payload: Some(piece),
            })),
        }),
    })
}

/// The status of an ask that must fail soon.
pub async fn refused(harness: &Embedded, request: AskRequest) -> Status {
    let mut client = runs(&harness.connect().await).max_encoding_message_size(64 << 20);
    within(SOON, client.ask(request))
        .await
        .expect_err("an error")
}
