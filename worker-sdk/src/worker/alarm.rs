//! One timer for a time that moves with every event.
//!
//! Owns a place in the runtime's timer wheel and leaves it where it is when the time moves back:
//! what rings too early is set again. So an event costs no change of the wheel.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// The timer.
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    pub(super) fn new() -> Self {
        Self(None)
    }

    /// Waits until `wake`, or for ever. Can be dropped and called again with another time.
    pub(super) async fn at(&mut self, wake: Option<Instant>) {
        let Some(wake) = wake else {
            return std::future::pending().await;
        };
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(wake)));
        if wake < sleep.deadline() {
            sleep.as_mut().reset(wake);
        }
        loop {
            sleep.as_mut().await;
            if sleep.deadline() >= wake {
                return;
            }
            sleep.as_mut().reset(wake);
        }
    }
}
