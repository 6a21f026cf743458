//! Knows when the transport has let go of the bytes it was given.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// The frame handed over last, until the transport drops it.
#[derive(Default)]
pub(super) struct Unsent {
    state: Mutex<UnsentState>,
}

#[derive(Default)]
struct UnsentState {
    unsent: bool,
    waker: Option<Waker>,
}

/// Bytes that tell when they are dropped.
struct Tracked {
    data: Bytes,
    unsent: Arc<Unsent>,
}

impl Unsent {
    /// Watches bytes until they are dropped.
    pub(super) fn track(this: &Arc<Self>, data: Bytes) -> Bytes {
        this.lock().unsent = true;
        Bytes::from_owner(Tracked {
            data,
            unsent: this.clone(),
        })
    }

    /// Whether what was handed over last has left.
    pub(super) fn is_gone(&self) -> bool {
        !self.lock().unsent
    }

    /// The same; if it has not, its drop wakes the task.
    pub(super) fn poll_gone(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.unsent {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, UnsentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.unsent.lock();
            state.unsent = false;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
