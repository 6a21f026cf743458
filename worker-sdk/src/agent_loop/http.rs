//! The way of a model call over HTTP, the same for all providers.
//!
//! Owns the client, the address and the headers, and makes one try. Keys are marked as secret and
//! are in no log and no error, also where a provider repeats what it was sent.

mod address;
mod answer;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use self::address::Address;
use self::answer::{Answer, Time, Timeouts};
use super::failure::{Failure, ModelError};
use super::redact::{Redactor, is_secret};
use super::request::Request;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Unless told otherwise. Models may think for minutes before they speak, and what is cut is paid for;
/// a server that only seems to answer is bounded in bytes too.
const TIMEOUTS: Timeouts = Timeouts {
    stall: Duration::from_secs(300),
    call: Duration::from_secs(3600),
};

/// A word of a secret header that is shorter than this says how it is to be read, such as `Bearer`.
const SECRET_BYTES_MIN: usize = 8;

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
    /// The address cannot be used.
    #[error("the address {address:?} of the provider cannot be used: {why}")]
    InvalidAddress {
        /// As much of it as may be shown: no password, no query.
        address: String,
        /// What to do about it.
        why: &'static str,
    },
    /// The HTTP client cannot be made, for example because there are no trusted certificates.
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Where the calls of one provider go.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: reqwest::Client,
    address: Address,
    headers: HeaderMap,
    secrets: Redactor,
    timeouts: Timeouts,
}

impl Endpoint {
    pub(crate) fn new(base_url: &str) -> Result<Self, ProviderError> {
        let address = Address::parse(base_url)?;
        let mut secrets = Redactor::default();
        address.hide_query(&mut secrets);
        Ok(Self {
            client: client(&address)?,
            address,
            headers: HeaderMap::new(),
            secrets,
            timeouts: TIMEOUTS,
        })
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
        let address = Address::parse(url)?;
        if address.is_loopback() != self.address.is_loopback() {
            self.client = client(&address)?;
        }
        address.hide_query(&mut self.secrets);
        self.address = address;
        Ok(self)
    }

    /// A header of every request. It is secret when its name says so: gateways have keys in headers
    /// such as `Helicone-Auth` and `Ocp-Apim-Subscription-Key`.
    pub(crate) fn header(self, name: &str, value: &str) -> Result<Self, ProviderError> {
        let lower = name.to_ascii_lowercase();
        let secret = is_secret(name) || lower.contains("auth") || lower.ends_with("key");
        self.with_header(name, value, secret)
    }

    pub(crate) fn secret_header(self, name: &str, value: &str) -> Result<Self, ProviderError> {
        self.with_header(name, value, true)
    }

    fn with_header(mut self, name: &str, text: &str, secret: bool) -> Result<Self, ProviderError> {
        let invalid = || ProviderError::InvalidHeader(name.to_owned());
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(text).map_err(|_| invalid())?;
        value.set_sensitive(secret);
        self.headers.insert(header, value);
        if secret {
            text.split([' ', ';', ','])
                .filter(|word| word.len() >= SECRET_BYTES_MIN)
                .for_each(|word| self.secrets.register(word));
        }
        Ok(self)
    }

    pub(crate) fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.stall = timeout;
        self
    }

    pub(crate) fn call_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.call = timeout;
        self
    }

    /// The error with no secret of this endpoint in its text.
    pub(crate) fn hidden(&self, error: ModelError) -> ModelError {
        let message = self.secrets.cut_text(error.message()).into_owned();
        error.with_message(message)
    }

    /// Sends a request, and gives the answer when its head has come.
    pub(crate) async fn call(
        &self,
        path: &str,
        request: &Request,
        body: &Value,
    ) -> Result<Answer, ModelError> {
        let time = Time::begins(self.timeouts);
        let sending = self
            .client
            .post(self.address.of_call(path))
            .headers(self.headers.clone())
            .header("content-type", "application/json")
            .body(body.to_string())
            .send();
        // The head of a stream comes at once, that of a whole answer when the model is through.
        let most = if request.stream {
            time.left()
        } else {
            time.left_of_call()
        };
        let response = tokio::time::timeout(most, sending)
            .await
            .map_err(|_| time.is_up(Failure::Transient))?
            .map_err(not_sent)?;
        let is_success = response.status().is_success();
        let answer = Answer::new(self.address.shown(path), response, time);
        if is_success {
            return Ok(answer);
        }
        Err(answer.refusal(request).await)
    }
}

/// Why there is no head of an answer.
fn not_sent(error: reqwest::Error) -> ModelError {
    let message = if is_behind(&error, is_tls) {
        "the TLS handshake with the provider failed"
    } else if is_behind(&error, is_refused) {
        "the provider cannot be reached: it refuses the connection"
    } else if error.is_connect() {
        "the provider cannot be reached"
    } else {
        "the provider gave no HTTP answer"
    };
    ModelError::new(Failure::Transient, message).with_cause(error.without_url())
}

/// Whether an error has one of a kind as its cause.
fn is_behind(error: &reqwest::Error, kind: fn(&(dyn StdError + 'static)) -> bool) -> bool {
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.any(kind)
}

fn is_tls(cause: &(dyn StdError + 'static)) -> bool {
    // An error of I/O tells what it holds as itself, not as its source.
    let held = cause
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    cause.is::<rustls::Error>() || held.is_some_and(|held| is_tls(held))
}

fn is_refused(cause: &(dyn StdError + 'static)) -> bool {
    let cause = cause.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
}

fn client(address: &Address) -> Result<reqwest::Client, ProviderError> {
    // Where the process has chosen a cryptography before, that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("harness-worker-sdk/", env!("CARGO_PKG_VERSION")));
    if address.is_loopback() {
        // No proxy of the environment is a way to this machine, and it would read the key.
        client = client.no_proxy();
    }
    client.build().map_err(ProviderError::Client)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &self.address.shown(""))
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_no_text_of_an_endpoint_and_in_no_error_that_repeats_it() {
        let key = "sk-not-to-be-seen";
        let endpoint = Endpoint::new("http://localhost/v1?code=sk-not-to-be-seen")
            .and_then(|endpoint| endpoint.secret_header("x-key", &format!("Bearer {key}")))
            .and_then(|endpoint| endpoint.header("API-Key", "of-azure-too"))
            .and_then(|endpoint| endpoint.header("x-other", "may-be-seen"))
            .expect("an endpoint");
        let shown = format!("{endpoint:?}");
        for (secret, is_shown) in [(key, false), ("of-azure", false), ("may-be-seen", true)] {
            assert_eq!(shown.contains(secret), is_shown, "{shown}");
        }
        for (said, told) in [
            (
                format!("no access with Bearer {key}."),
                "no access with Bearer [redacted].",
            ),
            ("api-key: of-azure-too".to_owned(), "api-key: [redacted]"),
            // A text of the provider may be cut anywhere.
            (
                "no access with sk-not-to-b".to_owned(),
                "no access with [redacted]",
            ),
            ("Bearer of may-be-seen".to_owned(), "Bearer of may-be-seen"),
        ] {
            let error = endpoint.hidden(ModelError::new(Failure::Rejected, said));
            assert_eq!(error.message(), told);
        }
    }
}
