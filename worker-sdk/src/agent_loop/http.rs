//! The way of a model call over HTTP, the same for all providers.
//!
//! Owns the client, the address, the headers and the bounds: how long nothing may come, how much
//! may come. Makes one try. Keys are marked as secret and are in no log and no error.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::decoding::{Decoder, Incoming, in_stream_error, json};
use super::failure::{Answered, Failure, ModelError, judge};
use super::pieces::Pieces;
use super::request::Request;
use super::response::Response;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long nothing may come unless told otherwise: models think before they speak.
const STALL_TIMEOUT: Duration = Duration::from_secs(90);

/// The most bytes of an answer that comes in one piece.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The most bytes of an error that are read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Why a provider cannot be used as it is set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The key is not in the environment.
    #[error("there is no key: set the environment variable {0}")]
    NoKey(&'static str),
    /// A header that cannot be sent; its value is not shown.
    #[error("the header {0} cannot be sent as it is set")]
    InvalidHeader(String),
    /// The address is none.
    #[error("{0:?} is no http or https address")]
    InvalidAddress(String),
    /// The HTTP client cannot be made, for example because there are no trusted certificates.
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Where the calls of one provider go.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: reqwest::Client,
    base_url: String,
    headers: HeaderMap,
    stall_timeout: Duration,
}

impl Endpoint {
    pub(crate) fn new(base_url: &str) -> Result<Self, ProviderError> {
        let endpoint = Self {
            client: client()?,
            base_url: String::new(),
            headers: HeaderMap::new(),
            stall_timeout: STALL_TIMEOUT,
        };
        endpoint.base_url(base_url)
    }

    /// The key in an environment variable.
    pub(crate) fn key_from(variable: &'static str) -> Result<String, ProviderError> {
        let key = std::env::var(variable).unwrap_or_default();
        let key = key.trim();
        if key.is_empty() {
            return Err(ProviderError::NoKey(variable));
        }
        Ok(key.to_owned())
    }

    pub(crate) fn base_url(mut self, url: &str) -> Result<Self, ProviderError> {
        let url = url.trim_end_matches('/');
        let is_http = reqwest::Url::parse(url)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if !is_http {
            return Err(ProviderError::InvalidAddress(url.to_owned()));
        }
        url.clone_into(&mut self.base_url);
        Ok(self)
    }

    pub(crate) fn header(self, name: &str, value: &str) -> Result<Self, ProviderError> {
        self.with_header(name, value, false)
    }

    pub(crate) fn secret_header(self, name: &str, value: &str) -> Result<Self, ProviderError> {
        self.with_header(name, value, true)
    }

    fn with_header(mut self, name: &str, value: &str, secret: bool) -> Result<Self, ProviderError> {
        let invalid = || ProviderError::InvalidHeader(name.to_owned());
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        value.set_sensitive(secret);
        self.headers.insert(header, value);
        Ok(self)
    }

    pub(crate) fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// An answer that comes in one piece.
    pub(crate) async fn whole(
        &self,
        path: &str,
        request: &Request,
        body: &Value,
    ) -> Result<String, ModelError> {
        let answer = self.send(path, request, body).await?;
        self.read(answer).await
    }

    async fn read(&self, mut answer: reqwest::Response) -> Result<String, ModelError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(&mut answer).await? {
            if bytes.len() + chunk.len() > BODY_BYTES_MAX {
                let limit = format!("the answer has more than {BODY_BYTES_MAX} bytes");
                return Err(ModelError::new(Failure::Unreadable, limit));
            }
            bytes.extend_from_slice(&chunk);
        }
        String::from_utf8(bytes)
            .map_err(|_| ModelError::new(Failure::Unreadable, "the answer is not UTF-8"))
    }

    /// An answer that comes in events; its text is passed on as it comes.
    pub(crate) async fn stream<D: Decoder>(
        &self,
        path: &str,
        request: &Request,
        body: &Value,
        decoder: D,
        pieces: &mut Pieces,
    ) -> Result<Response, ModelError> {
        let mut answer = self.send(path, request, body).await?;
        if is_json(&answer) {
            // A server that answers no stream where one was asked for has an error to tell.
            return Err(in_stream_error(&json(&self.read(answer).await?)?));
        }
        let mut incoming = Incoming::new(decoder);
        let broken = loop {
            match self.chunk(&mut answer).await {
                Ok(Some(chunk)) => {
                    let text = incoming.feed(&chunk)?;
                    pieces.text(&text).await?;
                    if incoming.is_done() {
                        break None;
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        // What broke behind the terminal event broke nothing.
        match (incoming.finish(), broken) {
            (Ok(response), _) => Ok(response),
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) => Err(error),
        }
    }

    async fn send(
        &self,
        path: &str,
        request: &Request,
        body: &Value,
    ) -> Result<reqwest::Response, ModelError> {
        let url = format!("{}{path}", self.base_url);
        let text = body.to_string();
        let sending = self
            .client
            .post(url)
            .headers(self.headers.clone())
            .header("content-type", "application/json")
            .body(text)
            .send();
        let answer = tokio::time::timeout(self.stall_timeout, sending)
            .await
            .map_err(|_| self.stalled(Failure::Transient))?
            .map_err(not_sent)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(self.refused(request, answer).await)
    }

    /// What an answer with an error status means.
    async fn refused(&self, request: &Request, mut answer: reqwest::Response) -> ModelError {
        let status = answer.status().as_u16();
        let headers: Vec<(String, String)> = answer
            .headers()
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect();
        let mut bytes = Vec::new();
        // The status alone says enough when the body does not come.
        while let Ok(Some(chunk)) = self.chunk(&mut answer).await {
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

    async fn chunk(&self, answer: &mut reqwest::Response) -> Result<Option<Bytes>, ModelError> {
        match tokio::time::timeout(self.stall_timeout, answer.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => {
                let message = "the connection broke before the end of the answer";
                Err(ModelError::new(Failure::Cut, message).with_cause(error.without_url()))
            }
            Err(_) => Err(self.stalled(Failure::Cut)),
        }
    }

    fn stalled(&self, failure: Failure) -> ModelError {
        let message = format!(
            "nothing came from the provider for {:?}",
            self.stall_timeout
        );
        ModelError::new(failure, message)
    }
}

fn is_json(answer: &reqwest::Response) -> bool {
    let kind = answer.headers().get("content-type");
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.starts_with("application/json")
}

fn not_sent(error: reqwest::Error) -> ModelError {
    let message = if error.is_connect() {
        "the provider cannot be reached"
    } else {
        "the request could not be sent"
    };
    ModelError::new(Failure::Transient, message).with_cause(error.without_url())
}

fn client() -> Result<reqwest::Client, ProviderError> {
    // Where the process has chosen a cryptography before, that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("harness-worker-sdk/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(ProviderError::Client)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}
