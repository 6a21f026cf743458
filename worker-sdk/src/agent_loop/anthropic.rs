//! Anthropic's Messages API.
//!
//! Owns its codec. How a request is written and an answer read is the affair of the modules below.

mod decode;
mod encode;
mod stream;

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
const PROVIDER: &str = "anthropic";

/// A model of Anthropic's, or of a server that speaks its Messages API.
///
/// The key is in `ANTHROPIC_API_KEY`, another address may be in `ANTHROPIC_BASE_URL`; it ends where
/// `/v1/messages` begins.
///
/// ```no_run
/// use worker_sdk::agent_loop::{AgentLoop, Anthropic};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let agent = AgentLoop::builder(Anthropic::from_env("claude-sonnet-4-5")?).build()?;
/// # Ok(())
/// # }
/// ```
pub type Anthropic = Provider<MessagesApi>;

/// The codec of [`Anthropic`].
#[derive(Debug, Default)]
pub struct MessagesApi(());

impl Codec for MessagesApi {
    const NAME: &str = PROVIDER;
    const BASE_URL: &str = "https://api.anthropic.com";
    const KEY_VARIABLE: &'static str = "ANTHROPIC_API_KEY";
    const BASE_URL_VARIABLE: &'static str = "ANTHROPIC_BASE_URL";
    const HEADERS: &[(&str, &str)] = &[("anthropic-version", "2023-06-01")];

    fn key_header(key: &str) -> (&'static str, String) {
        ("x-api-key", key.to_owned())
    }

    fn path(&self, _: &str, _: bool) -> Cow<'static, str> {
        Cow::Borrowed("/v1/messages")
    }

    fn request(&self, request: &Request, model: &str) -> Value {
        encode::request(request, model)
    }

    fn response(&self, body: &str, model: &str) -> Result<Response, ModelError> {
        decode::response(body, model)
    }

    fn decoder(&self, model: &str) -> impl Decoder {
        stream::Messages::new(model)
    }
}
