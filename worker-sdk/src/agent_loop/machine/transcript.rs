//! What was said in a run, and what of it a model is sent.
//!
//! Owns the turns in order with what each costs in tokens, the ids of calls, and the assembly of
//! the conversation. Nothing is changed afterwards: a turn is cleared or left out by a mark.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::compaction::Compaction;
use crate::agent_loop::budget::TokenCounter;
use crate::agent_loop::message::{Assistant, Block, Call, CallResult, Message};
use crate::agent_loop::pairs;
use crate::agent_loop::response::Response;

/// How far a provider's count may be from the estimate before the provider is not believed.
const RATIO_RANGE: (f64, f64) = (0.1, 4.0);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Transcript {
    opening: Vec<Arc<Message>>,
    turns: Vec<Turn>,
    /// Every id a call of the run has.
    ids: BTreeSet<String>,
    /// System text and tool schemas.
    fixed_tokens: u64,
    /// Of what is sent, by the counter.
    counted_tokens: u64,
    /// What the provider counted for what was counted here.
    ratio: f64,
}

/// One answer of the model, and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) number: u32,
    said: Arc<Message>,
    said_tokens: u64,
    results: Option<Arc<Message>>,
    results_tokens: u64,
    /// What the model is told after it, where no tool answers.
    told: Option<Arc<Message>>,
    pub(super) shown: Shown,
}

/// How much of a turn a model is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Shown {
    Whole,
    /// Its results are only named.
    Cleared,
    /// Nothing.
    Removed,
}

impl Transcript {
    pub(super) fn new(
        opening: Vec<Message>,
        fixed_tokens: u64,
        counter: &dyn TokenCounter,
    ) -> Self {
        let mut ids = BTreeSet::new();
        let opening: Vec<_> = opening.into_iter().map(Arc::new).collect();
        let opening = pairs::made_whole(opening, pairs::INTERRUPTED, &mut ids);
        let counted: u64 = opening.iter().map(|message| counter.message(message)).sum();
        Self {
            opening,
            turns: Vec::new(),
            ids,
            fixed_tokens,
            counted_tokens: fixed_tokens + counted,
            ratio: 1.0,
        }
    }

    /// Adds an answer. Gives its calls, each with an id of its own.
    pub(super) fn push(
        &mut self,
        response: &Response,
        number: u32,
        counter: &dyn TokenCounter,
    ) -> Vec<Call> {
        let mut said = response.said();
        let calls = self.name_calls(&mut said, number);
        let said = Message::Assistant(said);
        let said_tokens = counter.message(&said);
        self.counted_tokens += said_tokens;
        self.turns.push(Turn {
            number,
            said: Arc::new(said),
            said_tokens,
            results: None,
            results_tokens: 0,
            told: None,
            shown: Shown::Whole,
        });
        calls
    }

    fn name_calls(&mut self, said: &mut Assistant, number: u32) -> Vec<Call> {
        let mut calls = Vec::new();
        for block in &mut said.blocks {
            if let Block::Call(call) = block {
                let place = (number as usize, calls.len());
                call.id = pairs::fresh_id(&call.id, place, &mut self.ids);
                calls.push(call.clone());
            }
        }
        calls
    }

    /// The results of the last turn.
    pub(super) fn answer(&mut self, results: Vec<CallResult>, counter: &dyn TokenCounter) {
        let results = Message::Tools { results };
        let tokens = counter.message(&results);
        if let Some(turn) = self.turns.last_mut() {
            turn.results = Some(Arc::new(results));
            turn.results_tokens = tokens;
            self.counted_tokens += tokens;
        }
    }

    /// What the model is told after the last turn.
    pub(super) fn tell(&mut self, text: &str, counter: &dyn TokenCounter) {
        let told = Message::user(text);
        if let Some(turn) = self.turns.last_mut() {
            self.counted_tokens += counter.message(&told);
            turn.told = Some(Arc::new(told));
        }
    }

    /// The last turn is asked for again and is not sent.
    pub(super) fn forget_last(&mut self) {
        if let Some(turn) = self.turns.last_mut() {
            turn.shown = Shown::Removed;
            self.counted_tokens = self.counted_tokens.saturating_sub(turn.said_tokens);
        }
    }

    /// The provider counted so many tokens for the input as it was before the last answer.
    pub(super) fn calibrate(&mut self, reported: u64) {
        if self.counted_tokens > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a ratio of token counts")]
            let ratio = reported as f64 / self.counted_tokens as f64;
            self.ratio = ratio.clamp(RATIO_RANGE.0, RATIO_RANGE.1);
        }
    }

    /// What the input is estimated to be.
    pub(super) fn input_tokens(&self) -> u64 {
        self.corrected(self.counted_tokens)
    }

    /// A count of the counter's as the provider would count.
    pub(super) fn corrected(&self, counted: u64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate of a count"
        )]
        let corrected = (counted as f64 * self.ratio).ceil() as u64;
        corrected
    }

    pub(super) fn turns(&self) -> &[Turn] {
        &self.turns
    }

    pub(super) fn compact(&mut self, compaction: &Compaction, counter: &dyn TokenCounter) {
        for turn in &mut self.turns {
            if compaction.removed.contains(&turn.number) {
                turn.shown = Shown::Removed;
            } else if compaction.cleared.contains(&turn.number) && turn.shown == Shown::Whole {
                turn.shown = Shown::Cleared;
            }
        }
        let sent = self.assembled("");
        let counted: u64 = sent.iter().map(|message| counter.message(message)).sum();
        self.counted_tokens = self.fixed_tokens + counted;
    }

    /// The conversation, each call with exactly one result.
    pub(super) fn messages(&self, dangling: &str) -> Vec<Arc<Message>> {
        let messages = self.assembled(dangling);
        if pairs::are_whole(&messages) {
            return messages;
        }
        pairs::made_whole(messages, dangling, &mut BTreeSet::new())
    }

    fn assembled(&self, dangling: &str) -> Vec<Arc<Message>> {
        let mut messages = Vec::with_capacity(self.opening.len() + 2 * self.turns.len() + 1);
        messages.extend(self.opening.iter().cloned());
        let removed = self.turns.iter().filter(|turn| turn.is_left_out()).count();
        if removed > 0 {
            let text =
                format!("[{removed} earlier exchanges with tools were left out to save space.]");
            messages.push(Arc::new(Message::user(text)));
        }
        for turn in self
            .turns
            .iter()
            .filter(|turn| turn.shown != Shown::Removed)
        {
            turn.add_to(&mut messages, dangling);
        }
        messages
    }
}

impl Turn {
    fn add_to(&self, messages: &mut Vec<Arc<Message>>, dangling: &str) {
        let Message::Assistant(said) = &*self.said else {
            return;
        };
        if said.blocks.is_empty()
            && said
                .source
                .as_ref()
                .is_none_or(|source| source.raw.is_empty())
        {
            // An empty message is none, and no provider takes one.
            messages.extend(self.told.clone());
            return;
        }
        messages.push(Arc::clone(&self.said));
        match (&self.results, self.shown) {
            (Some(results), Shown::Cleared) => messages.push(Arc::new(cleared(results))),
            (Some(results), Shown::Whole | Shown::Removed) => messages.push(Arc::clone(results)),
            (None, _) => {
                let open: Vec<_> = said
                    .calls()
                    .map(|call| pairs::unanswered(call, dangling))
                    .collect();
                if !open.is_empty() {
                    messages.push(Arc::new(Message::Tools { results: open }));
                }
            }
        }
        messages.extend(self.told.clone());
    }

    /// Whether a compaction took it out; an answer that was asked for again is not missed.
    fn is_left_out(&self) -> bool {
        self.shown == Shown::Removed && self.results.is_some()
    }

    pub(super) fn is_answered(&self) -> bool {
        self.results.is_some()
    }

    /// What clearing its results would save, by the counter.
    pub(super) fn clearing_saves(&self) -> u64 {
        const NAMED_TOKENS: u64 = 40;
        match self.shown {
            Shown::Whole => {
                let calls = match self.results.as_deref() {
                    Some(Message::Tools { results }) => results.len() as u64,
                    Some(Message::User { .. } | Message::Assistant(_)) | None => 0,
                };
                self.results_tokens.saturating_sub(calls * NAMED_TOKENS)
            }
            Shown::Cleared | Shown::Removed => 0,
        }
    }

    /// What leaving it out saves once its results are cleared, by the counter.
    pub(super) fn removing_saves(&self) -> u64 {
        match self.shown {
            Shown::Whole | Shown::Cleared => self.said_tokens,
            Shown::Removed => 0,
        }
    }
}

/// Results of which only the sizes are left.
fn cleared(results: &Message) -> Message {
    let Message::Tools { results } = results else {
        return results.clone();
    };
    let named = results.iter().map(|result| CallResult {
        text: format!(
            "[result of {} bytes left out to save space]",
            result.text.len()
        ),
        ..result.clone()
    });
    Message::Tools {
        results: named.collect(),
    }
}
