//! OpenAI's chat completions, and the many servers that speak them.
//!
//! Owns the provider: key, address, and the few things in which servers differ. How a request is
//! written and an answer read is the affair of the pure modules below.

mod decode;
mod encode;
mod stream;
mod strict;

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::failure::ModelError;
use super::http::{Endpoint, ProviderError};
use super::model::Model;
use super::pieces::Pieces;
use super::request::Request;
use super::response::Response;

/// The name of the provider, as OpenTelemetry gives it.
pub(crate) const PROVIDER: &str = "openai";

/// A model of OpenAI's, or of a server that speaks its chat completions.
///
/// ```no_run
/// use worker_sdk::agent_loop::OpenAi;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The key is read from OPENAI_API_KEY.
/// let model = OpenAi::from_env("gpt-4.1")?;
/// // Any compatible server; local ones want no key.
/// let local = OpenAi::new("qwen3", "")?.base_url("http://127.0.0.1:8000/v1")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OpenAi {
    model: String,
    endpoint: Endpoint,
    cap: OutputCap,
}

/// The member of a request that says how long the answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputCap {
    /// `max_completion_tokens`, which OpenAI's newer models insist on. Default for OpenAI itself.
    MaxCompletionTokens,
    /// `max_tokens`, which all others know. Default for every other address.
    MaxTokens,
}

impl OutputCap {
    fn member(self) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
        }
    }
}

impl OpenAi {
    /// Where requests go unless told otherwise.
    pub const BASE_URL: &str = "https://api.openai.com/v1";

    /// The model, with the key in `OPENAI_API_KEY` and, if it is set, the address in
    /// `OPENAI_BASE_URL`.
    ///
    /// # Errors
    /// There is no key, or key or address cannot be used.
    pub fn from_env(model: impl Into<String>) -> Result<Self, ProviderError> {
        let key = Endpoint::key_from("OPENAI_API_KEY")?;
        let provider = Self::new(model, &key)?;
        match std::env::var("OPENAI_BASE_URL") {
            Ok(url) if !url.is_empty() => provider.base_url(&url),
            Ok(_) | Err(_) => Ok(provider),
        }
    }

    /// The model, with this key; none is sent when it is empty.
    ///
    /// # Errors
    /// The key cannot be sent in a header.
    pub fn new(model: impl Into<String>, key: &str) -> Result<Self, ProviderError> {
        let mut endpoint = Endpoint::new(Self::BASE_URL, "/chat/completions")?;
        if !key.is_empty() {
            endpoint = endpoint.secret_header("authorization", &format!("Bearer {key}"))?;
        }
        Ok(Self {
            model: model.into(),
            endpoint,
            cap: OutputCap::MaxCompletionTokens,
        })
    }

    /// Another server that speaks the same API; the address ends where `/chat/completions` begins.
    ///
    /// # Errors
    /// It is no http or https address.
    pub fn base_url(mut self, url: &str) -> Result<Self, ProviderError> {
        self.endpoint = self.endpoint.base_url(url)?;
        self.cap = OutputCap::MaxTokens;
        Ok(self)
    }

    /// Which member says how long the answer may be.
    #[must_use]
    pub fn output_cap(mut self, cap: OutputCap) -> Self {
        self.cap = cap;
        self
    }

    /// A header of every request.
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

impl Model for OpenAi {
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
        let body = encode::request(request, &self.model, self.cap.member());
        if request.stream {
            let decoder = stream::Chunks::new(&self.model);
            self.endpoint.stream(request, &body, decoder, pieces).await
        } else {
            let answer = self.endpoint.whole(request, &body).await?;
            let response = decode::response(&answer, &self.model)?;
            pieces.text(&response.text()).await?;
            Ok(response)
        }
    }
}
