//! What the model calls of a run used, added up.

use serde::{Deserialize, Serialize};

/// What all model calls of a run used: what the provider said, and where it said nothing of an answer
/// what was estimated. A call that failed is in it as far as its provider said what it used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written, thinking included.
    pub output_tokens: u64,
    /// In millionths of the prices' currency.
    pub cost_micros: u64,
}

impl Used {
    /// All tokens, read and written.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The same and a call more. A provider that tells of more than there can be reaches every
    /// limit and wraps around none.
    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cost_micros: self.cost_micros.saturating_add(more.cost_micros),
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
