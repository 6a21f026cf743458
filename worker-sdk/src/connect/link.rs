//! The connection all slots of a worker share.
//!
//! Owns who connects (one slot at a time, the others wait for it), when (jittered back-off) and
//! what is logged: one line when the harness is away, one when it is back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tonic::transport::Channel;
use tracing::{info, warn};

use super::{Address, Credential, Place, connect};
use crate::error::{Error, ErrorKind};
use crate::retry::Backoff;

/// The longest wait between tries while somebody is in a hurry.
const HURRIED_WAIT: Duration = Duration::from_millis(500);

/// One connection, made again when it broke.
#[derive(Debug)]
pub(crate) struct Link {
    place: Place,
    connection: Mutex<Connection>,
    presence: std::sync::Mutex<Presence>,
    /// How many slots have work that ends if there is no connection soon.
    hurried: AtomicUsize,
}

#[derive(Debug)]
struct Connection {
    backoff: Backoff,
    channel: Option<Channel>,
}

/// Whether the harness is there, as far as the newest connection tells.
#[derive(Debug, Default)]
struct Presence {
    /// Counts connections. What a slot says of an older one is no news: the slots of a broken
    /// connection notice one after the other, some after others are back.
    newest: u64,
    away: bool,
}

impl Link {
    pub(crate) fn new(place: Place, initial: Duration, max: Duration) -> Self {
        let connection = Connection {
            backoff: Backoff::new(initial, max),
            channel: None,
        };
        Self {
            place,
            connection: Mutex::new(connection),
            presence: Default::default(),
            hurried: AtomicUsize::new(0),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.place.address
    }

    pub(crate) fn credential(&self) -> Credential {
        self.place.credential.clone()
    }

    /// The connection and its number, once there is one: tries until it is made, at short intervals
    /// while anybody is in a hurry. Only a bad address is an error.
    pub(crate) async fn channel(&self) -> Result<(u64, Channel), Error> {
        let mut connection = self.connection.lock().await;
        loop {
            if let Some(channel) = &connection.channel {
                return Ok((self.presence().newest, channel.clone()));
            }
            match connect(self.address()).await {
                Ok((channel, _)) => {
                    connection.channel = Some(channel);
                    connection.backoff.reset();
                    self.presence().newest += 1;
                }
                Err(error) if error.kind() == ErrorKind::InvalidAddress => return Err(error),
                Err(error) => {
                    let newest = self.presence().newest;
                    self.away(newest, &chain(&error));
                    let mut wait = connection.backoff.next_wait(None);
                    if self.hurried.load(Ordering::Relaxed) > 0 {
                        wait = wait.min(HURRIED_WAIT);
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Whoever has this is in a hurry.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        self.hurried.fetch_add(1, Ordering::Relaxed);
        Hurry(&self.hurried)
    }

    /// This connection broke: the next call is made on a new one. Logs once that the harness is
    /// away.
    pub(crate) async fn lost(&self, number: u64, why: &str) {
        self.away(number, why);
        let mut connection = self.connection.lock().await;
        if self.presence().newest == number {
            connection.channel = None;
        }
    }

    /// A call on this connection was welcomed. Logs once that the harness is back, if it was away.
    pub(crate) fn back(&self, number: u64) {
        let mut presence = self.presence();
        if presence.newest == number && std::mem::replace(&mut presence.away, false) {
            info!(address = %self.address(), "the harness is back");
        }
    }

    /// Nothing is to be had on this connection for now, though it stands. Logs it once.
    pub(crate) fn away(&self, number: u64, why: &str) {
        let mut presence = self.presence();
        if presence.newest == number && !std::mem::replace(&mut presence.away, true) {
            warn!(address = %self.address(), why, "the harness is away; trying to reach it");
        }
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hurry; see [`Link::hurry`].
pub(crate) struct Hurry<'a>(&'a AtomicUsize);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
