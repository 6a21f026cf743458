//! Connections to a harness.
//!
//! Owns addresses, the transport's settings, and [`Link`]: the one connection all slots of a worker
//! share, made again by one of them at a time with back-off, and the one log line when the harness
//! is away. Opens no call.

mod address;
mod credential;
mod environment;
mod hearing;
mod link;

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, ErrorKind, Remote};

pub(crate) use address::Address;
pub(crate) use credential::Credential;
pub use environment::{ADDRESS_VARIABLE, AGENT_VARIABLE, TOKEN_VARIABLE};
pub(crate) use environment::{Environment, Place};
use hearing::Connector;
pub(crate) use hearing::Hearing;
pub(crate) use link::Link;

/// Where a harness listens unless configured otherwise.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:7070";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that answers no PING this long after one was due is dead, idle or not.
const KEEPALIVE: Duration = Duration::from_secs(10);

fn endpoint(address: &Address) -> Result<Endpoint, Error> {
    let endpoint = Endpoint::from_shared(address.target()).map_err(|error| {
        Error::new(
            ErrorKind::InvalidAddress,
            format!("{address} is no address"),
        )
        .with_source(error)
    })?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true))
}

/// Connects now, and waits until the other end has said something, as HTTP/2 wants it to at once.
pub(crate) async fn connect(address: &Address) -> Result<(Channel, Hearing), Error> {
    let (hearing, endpoint) = (Hearing::new(), endpoint(address)?);
    let connector = Connector::new(address.clone(), hearing.clone());
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, async {
        let channel = endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|error| unreachable_at(address, Some(&error)))?;
        let answered = hearing.within(CONNECT_TIMEOUT).await;
        answered
            .then_some(channel)
            .ok_or_else(|| silent_at(address))
    });
    let channel = connecting
        .await
        .unwrap_or_else(|_| Err(silent_at(address)))?;
    Ok((channel, hearing))
}

/// Connects at the first call, and again at the first one after the connection broke.
pub(crate) fn connect_lazily(address: &Address) -> Result<(Channel, Hearing), Error> {
    let hearing = Hearing::new();
    let connector = Connector::new(address.clone(), hearing.clone());
    let channel = endpoint(address)?.connect_with_connector_lazy(connector);
    Ok((channel, hearing))
}

/// Something took the connection and never said a word.
pub(crate) fn silent_at(address: &Address) -> Error {
    let cause = Remote {
        message: "the connection was taken and nothing was said on it".to_owned(),
        cause: None,
    };
    unreachable_at(address, None).with_source(cause)
}

/// Whether a call's end took its connection with it. `outermost` is the source of the call's
/// status: a status the peer sent has none. A reset concerns one stream; a GOAWAY, an I/O error
/// (a PING without an answer becomes one) and whatever else the transport says concern them all.
pub(crate) fn connection_broke(outermost: Option<&(dyn std::error::Error + 'static)>) -> bool {
    let mut next = outermost;
    while let Some(cause) = next {
        if let Some(stream) = cause.downcast_ref::<h2::Error>() {
            return stream.is_go_away() || stream.is_io();
        }
        next = cause.source();
    }
    outermost.is_some()
}

/// `outermost` is what the transport said.
pub(crate) fn unreachable_at(
    address: &Address,
    outermost: Option<&(dyn std::error::Error + 'static)>,
) -> Error {
    let error = Error::new(
        ErrorKind::Unreachable,
        format!("no harness answers at {address}"),
    )
    .with_retry(true, None);
    match Remote::chain(outermost) {
        Some(source) => error.with_source(source),
        None => error,
    }
}
