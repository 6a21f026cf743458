//! Anthropic's Messages API.
//!
//! Owns the provider: key, address, headers. How a request is written and an answer read is the
//! affair of the pure modules below.

mod decode;
mod encode;
mod stream;

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::failure::ModelError;
use super::http::{Endpoint, ProviderError};
use super::model::Model;
use super::pieces::Pieces;
use super::request::Request;
use super::response::Response;

/// The version of the API that is spoken.
const VERSION: &str = "2023-06-01";

/// The name of the provider, as OpenTelemetry gives it.
pub(crate) const PROVIDER: &str = "anthropic";

/// A model of Anthropic's, or of a server that speaks its Messages API.
///
/// ```no_run
/// use worker_sdk::agent_loop::{AgentLoop, Anthropic};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The key is read from ANTHROPIC_API_KEY.
/// let agent = AgentLoop::builder(Anthropic::from_env("claude-sonnet-4-5")?).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Anthropic {
    model: String,
    endpoint: Endpoint,
}

impl Anthropic {
    /// Where requests go unless told otherwise.
    pub const BASE_URL: &str = "https://api.anthropic.com";

    /// The model, with the key in `ANTHROPIC_API_KEY` and, if it is set, the address in
    /// `ANTHROPIC_BASE_URL`.
    ///
    /// # Errors
    /// There is no key, or key or address cannot be used.
    pub fn from_env(model: impl Into<String>) -> Result<Self, ProviderError> {
        let key = Endpoint::key_from("ANTHROPIC_API_KEY")?;
        let provider = Self::new(model, &key)?;
        match std::env::var("ANTHROPIC_BASE_URL") {
            Ok(url) if !url.is_empty() => provider.base_url(&url),
            Ok(_) | Err(_) => Ok(provider),
        }
    }

    /// The model, with this key.
    ///
    /// # Errors
    /// The key cannot be sent in a header.
    pub fn new(model: impl Into<String>, key: &str) -> Result<Self, ProviderError> {
        let endpoint = Endpoint::new(Self::BASE_URL, "/v1/messages")?
            .secret_header("x-api-key", key)?
            .header("anthropic-version", VERSION)?;
        Ok(Self {
            model: model.into(),
            endpoint,
        })
    }

    /// Another server that speaks the same API.
    ///
    /// # Errors
    /// It is no http or https address.
    pub fn base_url(mut self, url: &str) -> Result<Self, ProviderError> {
        self.endpoint = self.endpoint.base_url(url)?;
        Ok(self)
    }

    /// A header of every request, such as `anthropic-beta`.
    ///
    /// # Errors
    /// It cannot be a header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, ProviderError> {
        self.endpoint = self.endpoint.header(name, value)?;
        Ok(self)
    }

    /// How long nothing may come before the call is given up. Default 90 s.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.endpoint = self.endpoint.stall_timeout(timeout);
        self
    }
}

impl Model for Anthropic {
    fn provider(&self) -> &str {
        PROVIDER
    }

    fn model(&self) -> &str {
        &self.model
    }

    async fn complete(
        &self,
        request: &Request,
        pieces: &mut Pieces,
    ) -> Result<Response, ModelError> {
        let body = encode::request(request, &self.model);
        if request.stream {
            let decoder = stream::Messages::new(&self.model);
            self.endpoint.stream(request, &body, decoder, pieces).await
        } else {
            let answer = self.endpoint.whole(request, &body).await?;
            let response = decode::response(&answer, &self.model)?;
            pieces.text(&response.text()).await?;
            Ok(response)
        }
    }
}
