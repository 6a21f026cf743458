//! The context as blocking code sees it.
//!
//! Owns nothing but the waiting: each method does what the one of [`Context`] does and blocks the
//! calling thread until it is done or the work is to stop.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{CancelReason, Context, LogLevel, stopped};
use crate::client::Answer;
use crate::error::Error;
use crate::payload::{FromPayload, IntoPayload};

/// The [`Context`] of a [`crate::BlockingAgent`]: what it reads is the same, what waits blocks.
///
/// Every method that waits returns a `Cancelled` error as soon as the work is to stop.
#[derive(Debug, Clone)]
pub struct BlockingContext {
    pub(super) ctx: Context,
    runtime: Handle,
}

impl BlockingContext {
    pub(crate) fn new(ctx: Context, runtime: Handle) -> Self {
        Self { ctx, runtime }
    }

    /// Sends a piece of output; see [`Context::output`].
    ///
    /// # Errors
    /// As [`Context::output`].
    pub fn output(&self, piece: impl IntoPayload) -> Result<(), Error> {
        self.wait(self.ctx.output(piece))?
    }

    /// Says how far the work is; see [`Context::progress`].
    ///
    /// # Errors
    /// As [`Context::output`].
    pub fn progress(&self, fraction: f64, message: impl Into<String>) -> Result<(), Error> {
        self.wait(self.ctx.progress(fraction, message))?
    }

    /// Writes a log line into the run's journal; see [`Context::log`].
    ///
    /// # Errors
    /// As [`Context::output`].
    pub fn log(&self, level: LogLevel, message: impl Into<String>) -> Result<(), Error> {
        self.wait(self.ctx.log(level, message))?
    }

    /// Asks another agent and waits for its answer; see [`Context::ask`]. The whole of what is
    /// left of the deadline is the timeout.
    ///
    /// # Errors
    /// As an ask of the application's: every [`crate::ErrorKind`] the other run can end with.
    pub fn ask<R>(&self, agent: &str, request: impl IntoPayload) -> Result<Answer<R>, Error>
    where
        R: FromPayload + Send + 'static,
    {
        self.wait(self.ctx.ask(agent, request).into_future())?
    }

    /// Sleeps, but no longer than until the work is to stop.
    ///
    /// # Errors
    /// `Cancelled` when the work is to stop.
    pub fn sleep(&self, time: Duration) -> Result<(), Error> {
        self.wait(async move { tokio::time::sleep(time).await })
    }

    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                // What is done is done, also when the work is to stop.
                value = future => Ok(value),
                () = self.ctx.cancelled() => {
                    let reason = self.ctx.cancel_reason().unwrap_or(CancelReason::Cancelled);
                    Err(stopped(reason))
                }
            }
        })
    }
}

impl Deref for BlockingContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.ctx
    }
}
