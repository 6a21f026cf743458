//! Where the pieces of an answer go while it comes.
//!
//! Owns the way to the caller, what waits on it, and the knowledge that something went it: an answer
//! of which a piece was passed on is not asked for a second time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::excerpt::head;
use super::failure::ModelError;
use super::record::ESCAPED;
use crate::context::Context;

/// A piece of output of the loop, as the caller of the run sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Piece {
    /// Text of the answer, or of what the model says between calls.
    Text {
        /// The turn, from 1.
        turn: u32,
        /// What comes behind the pieces before it.
        text: String,
    },
}

/// The most bytes of text in a piece, so that its entry is small enough however it is escaped. No
/// character is longer than the least of it.
fn text_bytes_max(entry_bytes_max: u64) -> usize {
    const ENVELOPE_BYTES: usize = 128;
    let entry = usize::try_from(entry_bytes_max).unwrap_or(usize::MAX);
    (entry.saturating_sub(ENVELOPE_BYTES) / ESCAPED).max(4)
}

/// The way of an answer's text to the caller. What comes while a piece is on its way is the next
/// piece, so a journal that is slow to write has few, and one that is not has each at once.
#[derive(Debug)]
pub(crate) struct Outgoing {
    lying: Mutex<Lying>,
    bytes_max: usize,
    come: Notify,
    gone: Notify,
}

/// Text that waits for the piece before it.
#[derive(Debug, Default)]
struct Lying {
    text: String,
    is_over: bool,
}

impl Outgoing {
    fn new(entry_bytes_max: u64) -> Self {
        Self {
            lying: Mutex::default(),
            bytes_max: text_bytes_max(entry_bytes_max),
            come: Notify::new(),
            gone: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lying> {
        self.lying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts text down, in as many parts as there is room for.
    async fn put(&self, text: &str) {
        let mut rest = self.put_some(text);
        while !rest.is_empty() {
            self.gone.notified().await;
            rest = self.put_some(rest);
        }
    }

    /// Puts down what there is room for, and gives what is left.
    fn put_some<'t>(&self, text: &'t str) -> &'t str {
        let mut lying = self.lock();
        let room = self.bytes_max.saturating_sub(lying.text.len());
        let (part, rest) = text.split_at(head(text, room).len());
        lying.text.push_str(part);
        self.come.notify_one();
        rest
    }

    /// Nothing more is put down.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.come.notify_one();
    }

    /// Passes on what comes until the end.
    ///
    /// # Errors
    /// The run is to stop, or the caller takes no such piece.
    pub(crate) async fn pass_on(&self, ctx: &Context, turn: u32) -> Result<(), ModelError> {
        loop {
            let (text, is_over) = {
                let mut lying = self.lock();
                (std::mem::take(&mut lying.text), lying.is_over)
            };
            if !text.is_empty() {
                self.gone.notify_one();
                let piece = Piece::Text { turn, text };
                ctx.output(piece).await.map_err(ModelError::not_taken)?;
            } else if is_over {
                return Ok(());
            } else {
                self.come.notified().await;
            }
        }
    }
}

/// Where a model puts the pieces of its answer while it comes.
#[derive(Debug, Default)]
pub struct Pieces {
    outgoing: Option<Arc<Outgoing>>,
    passed: bool,
}

impl Pieces {
    /// Pieces that nobody wants.
    pub fn ignored() -> Self {
        Self::default()
    }

    /// Pieces that go out as entries of at most so many bytes, and their way.
    pub(crate) fn outgoing(entry_bytes_max: u64) -> (Self, Arc<Outgoing>) {
        let outgoing = Arc::new(Outgoing::new(entry_bytes_max));
        let pieces = Self {
            outgoing: Some(Arc::clone(&outgoing)),
            passed: false,
        };
        (pieces, outgoing)
    }

    /// Passes text on, in as many pieces as the harness's limit of an entry asks for; what comes
    /// while the caller is behind is joined. Waits while much is.
    ///
    /// # Errors
    /// None of its own: when the run is to stop, or the caller takes no such piece, the whole call
    /// is dropped.
    pub async fn text(&mut self, text: &str) -> Result<(), ModelError> {
        if let Some(outgoing) = self.outgoing.as_ref().filter(|_| !text.is_empty()) {
            self.passed = true;
            outgoing.put(text).await;
        }
        Ok(())
    }

    /// Whether a piece was passed on: then the answer is not asked for again.
    pub fn is_committed(&self) -> bool {
        self.passed
    }
}
