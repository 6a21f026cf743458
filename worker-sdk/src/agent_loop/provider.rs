//! A model behind an HTTP API, whichever that is.
//!
//! Owns what the providers share: the model's name, the key, the address, the one call. How an API
//! is spoken is its codec's affair, and pure; the way there is `http`'s.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::decoding::{Decoder, bounded};
use super::failure::ModelError;
use super::http::{Endpoint, ProviderError};
use super::model::Model;
use super::pieces::Pieces;
use super::request::Request;
use super::response::Response;

/// How one API is spoken: where it is, what its requests and answers look like. It does no I/O.
pub trait Codec: Default + fmt::Debug + Send + Sync + 'static {
    /// The name of the provider, as OpenTelemetry gives it where it does.
    const NAME: &str;
    /// Where requests go unless told otherwise.
    const BASE_URL: &str;
    /// The environment variable that has the key.
    const KEY_VARIABLE: &'static str;
    /// The environment variable that may have another address.
    const BASE_URL_VARIABLE: &'static str;
    /// What every request has in its head.
    const HEADERS: &[(&str, &str)] = &[];

    /// The header that shows the key.
    fn key_header(key: &str) -> (&'static str, String);

    /// The requests go to another server than the provider's own.
    fn elsewhere(&mut self) {}

    /// Where under the address a call goes.
    fn path(&self, model: &str, stream: bool) -> Cow<'static, str>;

    /// The body of a call.
    fn request(&self, request: &Request, model: &str) -> Value;

    /// An answer that came in one piece.
    fn response(&self, body: &str, model: &str) -> Result<Response, ModelError>;

    /// Takes an answer that comes in events.
    fn decoder(&self, model: &str) -> impl Decoder;
}

/// A model that is called over HTTP: [`Anthropic`](super::Anthropic) or
/// [`OpenAi`](super::OpenAi), or any server that speaks the API of one of them.
#[derive(Debug)]
pub struct Provider<C> {
    model: String,
    endpoint: Endpoint,
    pub(super) codec: C,
}

impl<C: Codec> Provider<C> {
    /// Where requests go unless told otherwise.
    pub const BASE_URL: &str = C::BASE_URL;

    /// The model, with the key and, if it is set, the address that the environment has.
    ///
    /// # Errors
    /// There is no key, or key or address cannot be used.
    pub fn from_env(model: impl Into<String>) -> Result<Self, ProviderError> {
        let key = Endpoint::key_from(C::KEY_VARIABLE)?;
        let provider = Self::new(model, &key)?;
        match std::env::var(C::BASE_URL_VARIABLE) {
            Ok(url) if !url.is_empty() => provider.base_url(&url),
            Ok(_) | Err(_) => Ok(provider),
        }
    }

    /// The model, with this key; none is sent when it is empty.
    ///
    /// # Errors
    /// The key cannot be sent in a header.
    pub fn new(model: impl Into<String>, key: &str) -> Result<Self, ProviderError> {
        let mut endpoint = Endpoint::new(C::BASE_URL)?;
        if !key.is_empty() {
            let (name, value) = C::key_header(key);
            endpoint = endpoint.secret_header(name, &value)?;
        }
        for (name, value) in C::HEADERS {
            endpoint = endpoint.header(name, value)?;
        }
        Ok(Self {
            model: model.into(),
            endpoint,
            codec: C::default(),
        })
    }

    /// Another server that speaks the same API; its address is what stands in the place of
    /// [`Provider::BASE_URL`]. A query of it, such as `?api-version=2024-10-21`, is sent with every
    /// call.
    ///
    /// The proxies of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`) are
    /// used, but never for an address on this machine. A proxy on the way to an http address reads
    /// the key.
    ///
    /// # Errors
    /// It is no http or https address, or there is a user name, a space or a `#` in it.
    pub fn base_url(mut self, url: &str) -> Result<Self, ProviderError> {
        self.endpoint = self.endpoint.base_url(url)?;
        self.codec.elsewhere();
        Ok(self)
    }

    /// A header of every request, such as `anthropic-beta`. One whose name says that it is secret,
    /// such as `api-key` or `authorization`, is treated like the key.
    ///
    /// # Errors
    /// It cannot be a header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, ProviderError> {
        self.endpoint = self.endpoint.header(name, value)?;
        Ok(self)
    }

    /// How long nothing may come before the call is given up. Default 5 minutes.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.endpoint = self.endpoint.stall_timeout(timeout);
        self
    }

    /// How long one call may take from its begin to the end of its answer, however much comes on the
    /// way. Default 1 hour. Time in which the caller takes no pieces does not count.
    ///
    /// When all that matters has come, a finish reason or the status of an error, the rest of the
    /// answer is waited for for 5 s at most.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.endpoint = self.endpoint.call_timeout(timeout);
        self
    }

    async fn answer(&self, request: &Request, pieces: &mut Pieces) -> Result<Response, ModelError> {
        let path = self.codec.path(&self.model, request.stream);
        let body = self.codec.request(request, &self.model);
        let answer = self.endpoint.call(&path, request, &body).await?;
        if request.stream && !answer.is_json() {
            return answer.events(self.codec.decoder(&self.model), pieces).await;
        }
        // Some servers know no streams and answer whole, whatever they were asked for.
        let response = bounded(self.codec.response(&answer.whole().await?, &self.model)?)?;
        pieces.text(&response.text()).await?;
        Ok(response)
    }
}

impl<C: Codec> Model for Provider<C> {
    fn provider(&self) -> &str {
        C::NAME
    }

    fn model(&self) -> &str {
        &self.model
    }

    async fn complete(
        &self,
        request: &Request,
        pieces: &mut Pieces,
    ) -> Result<Response, ModelError> {
        let answering = self.answer(request, pieces);
        answering.await.map_err(|error| self.endpoint.hidden(error))
    }
}

// One provider stands for all.
#[cfg(all(test, feature = "openai"))]
mod tests;
