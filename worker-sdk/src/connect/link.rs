//! The connection all slots of a worker share.
//!
//! Owns who connects (one slot at a time, the others wait for it), when (jittered back-off) and
//! what is logged: one line when the harness is away, one when it is back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tonic::transport::Channel;
use tracing::{info, warn};

use super::{Address, connect};
use crate::error::{Error, ErrorKind};
use crate::retry::Backoff;

/// One connection, made again when it broke.
#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    connection: Mutex<Connection>,
    away: AtomicBool,
}

#[derive(Debug)]
struct Connection {
    backoff: Backoff,
    /// Counts connections, so that a slot can only discard the one it used.
    number: u64,
    channel: Option<Channel>,
}

impl Link {
    pub(crate) fn new(address: Address, initial: Duration, max: Duration) -> Self {
        let connection = Connection {
            backoff: Backoff::new(initial, max),
            number: 0,
            channel: None,
        };
        Self {
            address,
            connection: Mutex::new(connection),
            away: AtomicBool::new(false),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The connection and its number, once there is one: tries until it is made. Only a bad
    /// address is an error.
    pub(crate) async fn channel(&self) -> Result<(u64, Channel), Error> {
        let mut connection = self.connection.lock().await;
        loop {
            if let Some(channel) = &connection.channel {
                return Ok((connection.number, channel.clone()));
            }
            match connect(&self.address).await {
                Ok(channel) => {
                    connection.number += 1;
                    connection.channel = Some(channel);
                    connection.backoff.reset();
                }
                Err(error) if error.kind() == ErrorKind::InvalidAddress => return Err(error),
                Err(error) => {
                    self.away(&chain(&error));
                    let wait = connection.backoff.next_wait(None);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Says that calls on this connection fail: the next one is made on a new connection.
    pub(crate) async fn discard(&self, number: u64) {
        let mut connection = self.connection.lock().await;
        if connection.number == number {
            connection.channel = None;
        }
    }

    /// Logs once that the harness is away.
    pub(crate) fn away(&self, why: &str) {
        if !self.away.swap(true, Ordering::Relaxed) {
            warn!(address = %self.address, why, "the harness is away; trying to reach it");
        }
    }

    /// Logs once that it is back, if it was away.
    pub(crate) fn back(&self) {
        if self.away.swap(false, Ordering::Relaxed) {
            info!(address = %self.address, "the harness is back");
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
