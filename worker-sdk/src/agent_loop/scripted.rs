//! A model that says what it is told to: for tests, and for demonstrations that need no key.
//!
//! Owns the script. What is said in a turn follows from the turn alone, so that a run that is
//! resumed on another worker hears the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::failure::{Failure, ModelError};
use super::message::{Block, Call};
use super::model::Model;
use super::pieces::Pieces;
use super::request::Request;
use super::response::{Finish, Response, Usage};

const PROVIDER: &str = "scripted";

type Script = dyn Fn(&Request) -> Option<Line> + Send + Sync;

/// A model that says what it is told to.
///
/// ```
/// use serde_json::json;
/// use worker_sdk::agent_loop::{Line, ScriptedModel};
///
/// let model = ScriptedModel::new([
///     Line::call("search", json!({"query": "rivers"})),
///     Line::text("The Nile is a river."),
/// ]);
/// ```
#[derive(Clone)]
pub struct ScriptedModel {
    script: Arc<Script>,
    failures: Arc<Mutex<VecDeque<ModelError>>>,
}

/// What the model says in one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    blocks: Vec<Block>,
    finish: Option<Finish>,
    usage: Option<Usage>,
}

impl Line {
    /// Says a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::of(Block::Text { text: text.into() })
    }

    /// Calls a tool.
    pub fn call(tool: impl Into<String>, arguments: Value) -> Self {
        Self::call_as("", tool, arguments.to_string())
    }

    /// Calls a tool under this id, with arguments that are whatever text they are.
    pub fn call_as(
        id: impl Into<String>,
        tool: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        Self::of(Block::Call(Call {
            id: id.into(),
            name: tool.into(),
            arguments: arguments.into(),
        }))
    }

    fn of(block: Block) -> Self {
        Self {
            blocks: vec![block],
            finish: None,
            usage: None,
        }
    }

    /// Says this too, in the same turn.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.blocks.extend(other.blocks);
        self
    }

    /// Ends like this. Default: with calls as `ToolCalls`, without as `Stop`.
    #[must_use]
    pub fn finish(mut self, finish: Finish) -> Self {
        self.finish = Some(finish);
        self
    }

    /// Reports this usage. Default: what was estimated.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }
}

impl ScriptedModel {
    /// Says these, one a turn.
    pub fn new(lines: impl IntoIterator<Item = Line>) -> Self {
        let lines: Vec<Line> = lines.into_iter().collect();
        Self::by(move |request| {
            let place = usize::try_from(request.turn.checked_sub(1)?).ok()?;
            lines.get(place).cloned()
        })
    }

    /// Says what a function of the request gives; None is the end of the script, which is an error.
    pub fn by(script: impl Fn(&Request) -> Option<Line> + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            failures: Arc::default(),
        }
    }

    /// Fails with these first, one a call.
    #[must_use]
    pub fn failing(self, failures: impl IntoIterator<Item = ModelError>) -> Self {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(failures);
        self
    }
}

impl Model for ScriptedModel {
    fn provider(&self) -> &str {
        PROVIDER
    }

    fn model(&self) -> &str {
        PROVIDER
    }

    async fn complete(
        &self,
        request: &Request,
        pieces: &mut Pieces,
    ) -> Result<Response, ModelError> {
        let failure = self
            .failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front();
        if let Some(failure) = failure {
            return Err(failure);
        }
        let Some(line) = (self.script)(request) else {
            let over = format!("the script has nothing for turn {}", request.turn);
            return Err(ModelError::new(Failure::Rejected, over));
        };
        let response = line.response(request);
        pieces.text(&response.text()).await?;
        Ok(response)
    }
}

impl Line {
    fn response(self, request: &Request) -> Response {
        let has_calls = self
            .blocks
            .iter()
            .any(|block| matches!(block, Block::Call(_)));
        let natural = if has_calls {
            Finish::ToolCalls
        } else {
            Finish::Stop
        };
        let finish = self.finish.unwrap_or(natural);
        let written = self.blocks.iter().map(|block| match block {
            Block::Text { text } | Block::Thinking { text, .. } => text.len(),
            Block::Call(call) => call.arguments.len(),
        });
        let written: usize = written.sum();
        let estimated = Usage {
            input_tokens: Some(request.input_tokens),
            output_tokens: Some((written as u64).div_ceil(3)),
            ..Usage::default()
        };
        Response {
            id: format!("scripted-{}", request.turn),
            provider: PROVIDER.to_owned(),
            model: PROVIDER.to_owned(),
            answered_by: PROVIDER.to_owned(),
            finish,
            finish_raw: format!("{finish:?}"),
            blocks: self.blocks,
            raw: Vec::new(),
            usage: self.usage.unwrap_or(estimated),
            note: None,
        }
    }
}

impl std::fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedModel").finish_non_exhaustive()
    }
}
