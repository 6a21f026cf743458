//! Making a conversation shorter when it comes near the end of the window.
//!
//! Owns the choice: the oldest results of tools first, then whole turns, call and results together,
//! never the newest turns, never the caller's own words; and well under the trigger, so that it is
//! not done again at once.

use serde::{Deserialize, Serialize};

use super::transcript::{Transcript, Turn};
use crate::agent_loop::budget::Budget;

/// What is left out of a conversation from here on. An entry of the journal, never a change of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// Turns whose results are only named.
    pub cleared: Vec<u32>,
    /// Turns that are left out with call and results.
    pub removed: Vec<u32>,
    /// What the input was estimated to be before, in tokens.
    pub tokens_before: u64,
    /// What it is estimated to be after.
    pub tokens_after: u64,
}

/// What to leave out; None when there is nothing.
pub(super) fn plan(
    transcript: &Transcript,
    budget: &Budget,
    output_tokens: u32,
    must_shorten: bool,
) -> Option<Compaction> {
    let before = transcript.input_tokens();
    let (trigger, target) = if must_shorten {
        // The provider counts more than was estimated; half of the estimate is a new begin.
        let half = (before / 2).min(budget.target(output_tokens));
        (half, half)
    } else {
        (budget.trigger(output_tokens), budget.target(output_tokens))
    };
    let newest = transcript
        .turns()
        .len()
        .saturating_sub(budget.turns_kept as usize);
    let old: Vec<&Turn> = transcript.turns()[..newest]
        .iter()
        .filter(|turn| turn.is_answered())
        .collect();
    let mut left = before;
    let mut take = |saves: fn(&Turn) -> u64| {
        let mut taken = Vec::new();
        for turn in &old {
            let saved = transcript.corrected(saves(turn));
            if left > target && saved > 0 {
                left = left.saturating_sub(saved);
                taken.push(turn.number);
            }
        }
        (taken, left)
    };
    let (cleared, after) = take(Turn::clearing_saves);
    let (removed, after) = if after > trigger {
        take(Turn::removing_saves)
    } else {
        (Vec::new(), after)
    };
    let does_something = !cleared.is_empty() || !removed.is_empty();
    does_something.then_some(Compaction {
        cleared,
        removed,
        tokens_before: before,
        tokens_after: after,
    })
}
