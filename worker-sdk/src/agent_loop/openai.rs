//! OpenAI's chat completions, and the many servers that speak them.
//!
//! Owns their codec and the few things in which servers differ. How a request is written and an
//! answer read is the affair of the modules below.

mod decode;
mod encode;
mod stream;
mod strict;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::Value;

use super::decoding::Decoder;
use super::failure::ModelError;
use super::provider::{Codec, Provider};
use super::request::Request;
use super::response::Response;

/// The name of the provider.
const PROVIDER: &str = "openai";

/// A model of OpenAI's, or of a server that speaks its chat completions.
///
/// The key is in `OPENAI_API_KEY`, another address may be in `OPENAI_BASE_URL`; it ends where
/// `/chat/completions` begins.
///
/// ```no_run
/// use worker_sdk::agent_loop::OpenAi;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = OpenAi::from_env("gpt-4.1")?;
/// // Any compatible server; local ones want no key.
/// let local = OpenAi::new("qwen3", "")?.base_url("http://127.0.0.1:8000/v1")?;
/// # Ok(())
/// # }
/// ```
pub type OpenAi = Provider<ChatCompletionsApi>;

/// The codec of [`OpenAi`].
#[derive(Debug)]
pub struct ChatCompletionsApi {
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
    /// Which member says how long the answer may be. [`Provider::base_url`] sets it too, so this
    /// comes behind that.
    #[must_use]
    pub fn output_cap(mut self, cap: OutputCap) -> Self {
        self.codec.cap = cap;
        self
    }
}

impl Default for ChatCompletionsApi {
    fn default() -> Self {
        Self {
            cap: OutputCap::MaxCompletionTokens,
        }
    }
}

impl Codec for ChatCompletionsApi {
    const NAME: &str = PROVIDER;
    const BASE_URL: &str = "https://api.openai.com/v1";
    const KEY_VARIABLE: &'static str = "OPENAI_API_KEY";
    const BASE_URL_VARIABLE: &'static str = "OPENAI_BASE_URL";

    fn key_header(key: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {key}"))
    }

    fn elsewhere(&mut self) {
        self.cap = OutputCap::MaxTokens;
    }

    fn path(&self, _: &str, _: bool) -> Cow<'static, str> {
        Cow::Borrowed("/chat/completions")
    }

    fn request(&self, request: &Request, model: &str) -> Value {
        encode::request(request, model, self.cap.member())
    }

    fn response(&self, body: &str, model: &str) -> Result<Response, ModelError> {
        decode::response(body, model)
    }

    fn decoder(&self, model: &str) -> impl Decoder {
        stream::Chunks::new(model)
    }
}
