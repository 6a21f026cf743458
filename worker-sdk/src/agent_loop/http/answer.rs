//! An answer that is coming in over HTTP.
//!
//! Owns its bounds: how long nothing may come, how long all of it may take, how much may come.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::agent_loop::decoding::{Decoder, Incoming};
use crate::agent_loop::excerpt::head;
use crate::agent_loop::failure::{Answered, Failure, ModelError, judge};
use crate::agent_loop::pieces::Pieces;
use crate::agent_loop::request::Request;
use crate::agent_loop::response::Response;

/// How long the rest of an answer may take of which all that matters is there: the usage behind a
/// finish reason, the body behind an error's status.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of an answer.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The most bytes of an error that are read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a content type that are shown at most.
const KIND_BYTES: usize = 100;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// How long nothing may come.
    pub(super) stall: Duration,
    /// How long all of it may take.
    pub(super) call: Duration,
}

/// The time of one call.
#[derive(Clone, Copy)]
pub(super) struct Time {
    timeouts: Timeouts,
    begin: Instant,
}

impl Time {
    pub(super) fn begins(timeouts: Timeouts) -> Self {
        let begin = Instant::now();
        Self { timeouts, begin }
    }

    /// How long may be waited now.
    pub(super) fn left(&self) -> Duration {
        self.left_of_call().min(self.timeouts.stall)
    }

    /// How long the call may go on.
    pub(super) fn left_of_call(&self) -> Duration {
        self.timeouts.call.saturating_sub(self.begin.elapsed())
    }

    /// The error of having waited so long.
    pub(super) fn is_up(&self, failure: Failure) -> ModelError {
        let Timeouts { stall, call } = self.timeouts;
        let message = if self.begin.elapsed() >= call {
            format!("the answer of the provider did not come to its end in {call:?}")
        } else {
            format!("nothing came from the provider for {stall:?}")
        };
        ModelError::new(failure, message)
    }

    /// All that matters is there. Gives the time as it was.
    fn rest(&mut self) -> Self {
        let call = self.timeouts.call.min(REST_TIMEOUT);
        let rest = Self::begins(Timeouts {
            call,
            ..self.timeouts
        });
        std::mem::replace(self, rest)
    }
}

/// The answer of one call, whose head has come.
pub(crate) struct Answer {
    /// The address that answers, as it may be shown.
    from: String,
    response: reqwest::Response,
    time: Time,
    bytes: usize,
}

impl Answer {
    pub(super) fn new(from: String, response: reqwest::Response, time: Time) -> Self {
        Self {
            from,
            response,
            time,
            bytes: 0,
        }
    }

    /// Whether it comes in one piece, asked for so or not.
    pub(crate) fn is_json(&self) -> bool {
        self.kind().starts_with(JSON)
    }

    /// All of an answer that comes in one piece.
    pub(crate) async fn whole(mut self) -> Result<String, ModelError> {
        self.must_be(JSON)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        String::from_utf8(bytes)
            .map_err(|_| ModelError::new(Failure::Unreadable, "the answer is not UTF-8"))
    }

    /// An answer that comes in events; its text is passed on as it comes. One that fails tells what
    /// it used until then.
    pub(crate) async fn events<D: Decoder>(
        mut self,
        decoder: D,
        pieces: &mut Pieces,
    ) -> Result<Response, ModelError> {
        self.must_be(EVENTS)?;
        let mut incoming = Incoming::new(decoder);
        let taken = self.take_events(&mut incoming, pieces).await;
        let usage = incoming.usage();
        let answer = taken.and_then(|broken| match (incoming.finish(), broken) {
            // What broke behind the end of the answer broke nothing.
            (Ok(response), _) => Ok(response),
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) => Err(error),
        });
        answer.map_err(|error| error.with_usage(usage))
    }

    /// Takes events until no more come; gives what broke the way they came.
    async fn take_events<D: Decoder>(
        &mut self,
        incoming: &mut Incoming<D>,
        pieces: &mut Pieces,
    ) -> Result<Option<ModelError>, ModelError> {
        let mut before = None;
        loop {
            let chunk = match self.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(None),
                Err(error) => return Ok(Some(error)),
            };
            let text = incoming.feed(&chunk)?;
            let passing = Instant::now();
            pieces.text(&text).await?;
            // A caller that is behind takes none of the provider's time.
            self.time.begin += passing.elapsed();
            if incoming.is_done() {
                return Ok(None);
            }
            match (incoming.is_whole(), before) {
                (true, None) => before = Some(self.time.rest()),
                // A call behind a finish reason takes it back: the answer goes on.
                (false, Some(time)) => {
                    self.time = time;
                    before = None;
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
    }

    /// What an answer with an error status means.
    pub(super) async fn refusal(mut self, request: &Request) -> ModelError {
        let status = self.response.status().as_u16();
        let headers: Vec<(String, String)> = self
            .response
            .headers()
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect();
        self.time.rest();
        let mut bytes = Vec::new();
        // The status alone says enough when the body does not come.
        while let Ok(Some(chunk)) = self.chunk().await {
            bytes.extend_from_slice(&chunk);
            if bytes.len() >= ERROR_BYTES_MAX {
                break;
            }
        }
        judge(Answered {
            status: Some(status),
            headers: &headers,
            body: &String::from_utf8_lossy(&bytes),
            is_over_the_limit: request.input_tokens > request.input_tokens_max,
        })
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, ModelError> {
        let chunk = match tokio::time::timeout(self.time.left(), self.response.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            Ok(Err(error)) => {
                let message = "the connection broke before the end of the answer";
                let error = error.without_url();
                return Err(ModelError::new(Failure::Cut, message).with_cause(error));
            }
            Err(_) => return Err(self.time.is_up(Failure::Cut)),
        };
        self.bytes += chunk.as_ref().map_or(0, Bytes::len);
        if self.bytes > BODY_BYTES_MAX {
            let limit = format!("the answer has more than {BODY_BYTES_MAX} bytes");
            return Err(ModelError::new(Failure::Unreadable, limit));
        }
        Ok(chunk)
    }

    /// What the body is said to be; empty when nothing is said.
    fn kind(&self) -> String {
        let kind = self.response.headers().get("content-type");
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        kind.to_ascii_lowercase()
    }

    /// A page for people, for example, comes from no API, and will not the next time.
    fn must_be(&self, wanted: &str) -> Result<(), ModelError> {
        let kind = self.kind();
        if kind.is_empty() || kind.starts_with(wanted) {
            return Ok(());
        }
        let message = format!(
            "{} answered {} with {:?} where {wanted} was to come; is the address right?",
            self.from,
            self.response.status().as_u16(),
            head(&kind, KIND_BYTES),
        );
        Err(ModelError::new(Failure::Unreadable, message))
    }
}
