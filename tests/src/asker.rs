//! A caller for tests that are no async code: it asks over the bare wire and holds every ask to the
//! one rule of all callers, that none waits past its deadline plus a second.

mod many;
mod runs;

use std::time::{Duration, Instant};

use harness_proto::v1::{AskRequest, AskResponse, Error, ErrorCode, RetryPolicy};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::harness::Harness;
use crate::process::tell;
use crate::raw;

pub use runs::{Stream, error_of};

/// How long past its deadline a caller may wait.
const GRACE: Duration = Duration::from_secs(1);

/// Asks one agent of one harness, all over one connection.
pub struct Asker {
    channel: Channel,
    agent: String,
    retry: Option<RetryPolicy>,
    runtime: Runtime,
}

/// An ask on its way.
pub struct Asking<'a> {
    asker: &'a Asker,
    task: JoinHandle<Answer>,
}

/// What came of an ask.
#[derive(Debug)]
pub struct Answer {
    /// The answer or the error.
    pub result: Result<AskResponse, Status>,
    /// How long the caller waited.
    pub took: Duration,
}

impl Asker {
    /// Connects to a harness on a TCP port.
    ///
    /// # Panics
    /// When it cannot.
    #[track_caller]
    pub fn new(harness: &Harness, agent: &str) -> Self {
        Self::at(harness.address(), agent)
    }

    /// Connects to `host:port`, where a harness is or a proxy to one.
    ///
    /// # Panics
    /// When it cannot.
    #[track_caller]
    pub fn at(address: &str, agent: &str) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime must start");
        Self {
            channel: runtime.block_on(raw::connect(address)),
            agent: agent.to_owned(),
            retry: None,
            runtime,
        }
    }

    /// Allows each ask so many attempts, with waits up to this between them.
    #[must_use]
    pub fn retrying(mut self, max_attempts: u32, backoff: Duration) -> Self {
        self.retry = Some(RetryPolicy {
            max_attempts,
            initial_backoff: Some(raw::proto(backoff)),
            max_backoff: Some(raw::proto(backoff)),
            ..RetryPolicy::default()
        });
        self
    }

    fn request(&self, payload: &str, timeout: Duration) -> AskRequest {
        let mut request = raw::ask(&self.agent, payload, timeout);
        request.options.get_or_insert_default().retry_policy = self.retry.clone();
        request
    }

    /// Asks and waits for what comes of it.
    ///
    /// # Panics
    /// When the caller waited past its deadline plus a second.
    #[track_caller]
    pub fn ask(&self, payload: &Value, timeout: Duration) -> Answer {
        self.start(payload, timeout).answer()
    }

    /// [`Asker::ask`] with bytes that need not be JSON.
    ///
    /// # Panics
    /// As [`Asker::ask`].
    #[track_caller]
    pub fn ask_text(&self, payload: &str, timeout: Duration) -> Answer {
        self.start_text(payload, timeout).answer()
    }

    /// Asks and does not wait.
    pub fn start(&self, payload: &Value, timeout: Duration) -> Asking<'_> {
        self.start_text(&payload.to_string(), timeout)
    }

    fn start_text(&self, payload: &str, timeout: Duration) -> Asking<'_> {
        let request = self.request(payload, timeout);
        let mut client = raw::runs(&self.channel).max_encoding_message_size(64 << 20);
        let task = self.runtime.spawn(async move {
            let start = Instant::now();
            // No gRPC deadline: what answers in time is the harness.
            let asked = tokio::time::timeout(timeout + GRACE, client.ask(request)).await;
            let took = start.elapsed();
            let result = asked
                .unwrap_or_else(|_| panic!("{timeout:?} to answer, and nothing after {took:?}"))
                .map(tonic::Response::into_inner);
            if let Some(over) = took.checked_sub(timeout) {
                tell(&format!("answered {over:?} after the deadline"));
            }
            Answer { result, took }
        });
        Asking { asker: self, task }
    }
}

impl Asking<'_> {
    /// Ends many calls at once, without waiting for their answers.
    pub fn hang_up_all(asked: Vec<Self>) {
        for asking in &asked {
            asking.task.abort();
        }
        asked.into_iter().for_each(Self::hang_up);
    }

    /// Waits for what comes of it.
    ///
    /// # Panics
    /// When the caller waited past its deadline plus a second.
    #[track_caller]
    pub fn answer(self) -> Answer {
        let ended = self.asker.runtime.block_on(self.task);
        ended.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Ends the call without waiting for its answer.
    pub fn hang_up(self) {
        self.task.abort();
        // Cancelled, or answered at this very moment; either way the caller is gone.
        drop(self.asker.runtime.block_on(self.task));
    }
}

impl Answer {
    /// The answer's bytes.
    ///
    /// # Panics
    /// When it is an error.
    #[track_caller]
    pub fn bytes(self) -> bytes::Bytes {
        let answer = self
            .result
            .unwrap_or_else(|status| panic!("not answered: {status:?}"));
        assert_eq!((answer.run_id.len(), answer.attempt), (36, 1));
        answer.payload.expect("an answer must have a payload").data
    }

    /// The answer as JSON.
    ///
    /// # Panics
    /// When it is an error or no JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_slice(&self.bytes()).expect("the answer must be JSON")
    }

    /// The error, which must be of this status and code and have all its details.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn error(&self, grpc: Code, code: ErrorCode) -> Error {
        let status = match &self.result {
            Ok(answer) => panic!("answered, not {code:?}: {answer:?}"),
            Err(status) => status,
        };
        let error = raw::typed(status, grpc, code);
        let name = code.as_str_name().trim_start_matches("ERROR_CODE_");
        assert_eq!(raw::reason(status), name);
        assert!(!error.message.is_empty());
        error
    }

    /// [`Answer::error`], which must have come at once and not at the deadline.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn error_at_once(&self, grpc: Code, code: ErrorCode) -> Error {
        assert!(self.took < GRACE, "at once, not after {:?}", self.took);
        self.error(grpc, code)
    }
}
