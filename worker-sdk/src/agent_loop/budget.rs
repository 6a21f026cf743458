//! How much a run may use, and how its input is counted before it is sent.
//!
//! Owns the limits of a run with their defaults, and the counting of tokens: bytes over three,
//! corrected by what the provider reported last, or an exact counter. What is done when a limit is
//! reached is the machine's affair.

use serde::{Deserialize, Serialize};

use super::message::{Block, Message};
use super::request::Thinking;

/// What a run may do before it is ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Model calls. Default 50.
    pub turns: u32,
    /// Tool calls. Default 200.
    pub tool_calls: u32,
    /// Turns in a row in which one tool only failed. Default 3.
    pub failing_turns: u32,
    /// Calls of one tool with the same arguments, whatever comes out, before the model is warned;
    /// after twice as many the run ends. Default 3.
    pub identical_calls: u32,
    /// Times in a row that a provider may pause its answer. Default 8.
    pub pauses: u32,
    /// Answers in a row that a provider could not read a call in. Default 3.
    pub malformed: u32,
    /// Tokens of all model calls, input and output; of an answer whose provider does not say, what
    /// was estimated. A call that failed counts as far as its provider said what it used. Looked at
    /// before each call, also before one that is made again. Default none.
    pub total_tokens: Option<u64>,
    /// Cost of all calls, in millionths, of the same tokens. Default none; needs [`Prices`].
    pub cost_micros: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turns: 50,
            tool_calls: 200,
            failing_turns: 3,
            identical_calls: 3,
            pauses: 8,
            malformed: 3,
            total_tokens: None,
            cost_micros: None,
        }
    }
}

/// What one model call may read and write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// What the model can hold, input and output together, in tokens. Default 128,000.
    pub context_window: u64,
    /// The part of the window, in percent, from which the conversation is made shorter. Default 80.
    pub trigger_percent: u8,
    /// The part of the window, in percent, that it is made to fit. Well under the trigger, so that
    /// it is not made shorter at every turn. Default 50.
    pub target_percent: u8,
    /// The newest turns, which are never made shorter. Default 2.
    pub turns_kept: u32,
    /// Tokens an answer may have. Default 4096.
    pub max_output_tokens: u32,
    /// Tokens an answer may have when the one before was cut off. Default 16,384; not more than
    /// `max_output_tokens` means that there is no second try.
    pub max_output_tokens_retry: u32,
    /// How much the model may think, beside the answer. Default [`Thinking::Default`].
    pub thinking: Thinking,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            context_window: 128_000,
            trigger_percent: 80,
            target_percent: 50,
            turns_kept: 2,
            max_output_tokens: 4096,
            max_output_tokens_retry: 16_384,
            thinking: Thinking::Default,
        }
    }
}

impl Budget {
    /// What the input may have beside an answer of so many tokens.
    pub(crate) fn input_tokens_max(&self, output_tokens: u32) -> u64 {
        let reserved = u64::from(output_tokens) + u64::from(self.thinking.reserved_tokens());
        self.context_window.saturating_sub(reserved)
    }

    pub(crate) fn trigger(&self, output_tokens: u32) -> u64 {
        self.percent_of_input(self.trigger_percent, output_tokens)
    }

    pub(crate) fn target(&self, output_tokens: u32) -> u64 {
        let percent = self.target_percent.min(self.trigger_percent);
        self.percent_of_input(percent, output_tokens)
    }

    fn percent_of_input(&self, percent: u8, output_tokens: u32) -> u64 {
        let max = self.input_tokens_max(output_tokens);
        // A window of any size is one: somebody without a limit writes `u64::MAX`.
        max.saturating_mul(u64::from(percent.min(100))) / 100
    }
}

/// What a model's tokens cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// A million tokens of input that were not cached, in millionths of the currency.
    pub input_micros: u64,
    /// The same of cached input.
    pub cached_micros: u64,
    /// The same of output, thinking included.
    pub output_micros: u64,
    /// ISO 4217, such as `USD`.
    pub currency: String,
}

impl Prices {
    /// What a call cost, in millionths of the currency; unknown tokens cost nothing.
    pub(crate) fn cost_micros(&self, usage: &super::response::Usage) -> u64 {
        let cached = usage.cached_tokens.unwrap_or(0);
        let input = usage.input_tokens.unwrap_or(0).saturating_sub(cached);
        let output = usage.output_tokens.unwrap_or(0);
        let of = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let total = of(input, self.input_micros)
            + of(cached, self.cached_micros)
            + of(output, self.output_micros);
        u64::try_from(total / 1_000_000).unwrap_or(u64::MAX)
    }
}

/// Counts tokens before a provider does.
pub trait TokenCounter: Send + Sync + 'static {
    /// The tokens of a text.
    fn text(&self, text: &str) -> u64;

    /// The tokens of a message: its texts and a little for what is around them.
    fn message(&self, message: &Message) -> u64 {
        const FRAME: u64 = 8;
        match message {
            Message::User { text } => FRAME + self.text(text),
            Message::Assistant(said) => said
                .blocks
                .iter()
                .map(|block| FRAME + self.block(block))
                .sum(),
            Message::Tools { results } => results
                .iter()
                .map(|result| FRAME + self.text(&result.call_id) + self.text(&result.text))
                .sum(),
        }
    }

    /// The tokens of a block.
    fn block(&self, block: &Block) -> u64 {
        match block {
            Block::Text { text } => self.text(text),
            Block::Thinking { text, signature } => {
                self.text(text)
                    + signature
                        .as_deref()
                        .map_or(0, |signature| self.text(signature))
            }
            Block::Call(call) => self.text(&call.name) + self.text(&call.arguments),
        }
    }

    /// Whether it counts as the provider does. What it counts is then not corrected by what the
    /// provider reports.
    fn is_exact(&self) -> bool {
        true
    }
}

/// Three bytes a token: more than most texts have, so the estimate errs on the safe side.
#[derive(Debug, Clone, Copy, Default)]
pub struct BytesOverThree;

impl TokenCounter for BytesOverThree {
    fn text(&self, text: &str) -> u64 {
        (text.len() as u64).div_ceil(3)
    }

    fn message(&self, message: &Message) -> u64 {
        message.bytes().div_ceil(3)
    }

    fn is_exact(&self) -> bool {
        false
    }
}
