//! Where the pieces of an answer go while it comes.
//!
//! Owns the way to the caller and the knowledge that something went it: an answer of which a piece
//! was passed on is not asked for a second time.

use serde::{Deserialize, Serialize};

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

/// The way of an answer's pieces to the caller.
#[derive(Debug, Default)]
pub struct Pieces {
    caller: Option<Context>,
    turn: u32,
    passed: bool,
}

impl Pieces {
    /// Pieces that nobody wants.
    pub fn ignored() -> Self {
        Self::default()
    }

    pub(crate) fn to_caller(ctx: &Context, turn: u32) -> Self {
        Self {
            caller: Some(ctx.clone()),
            turn,
            passed: false,
        }
    }

    /// Passes text on, in as many pieces as the harness's limit of an entry asks for. Waits while
    /// the caller is behind.
    ///
    /// # Errors
    /// The run is to stop, or the caller takes no such piece.
    pub async fn text(&mut self, text: &str) -> Result<(), ModelError> {
        let Some(ctx) = self.caller.as_ref().filter(|_| !text.is_empty()) else {
            return Ok(());
        };
        self.passed = true;
        let most = text_bytes_max(ctx.entry_bytes_max());
        let mut rest = text;
        while !rest.is_empty() {
            let (next, behind) = rest.split_at(head(rest, most).len());
            let piece = Piece::Text {
                turn: self.turn,
                text: next.to_owned(),
            };
            ctx.output(piece).await.map_err(ModelError::not_taken)?;
            rest = behind;
        }
        Ok(())
    }

    /// Whether a piece was passed on: then the answer is not asked for again.
    pub fn is_committed(&self) -> bool {
        self.passed
    }
}
