//! Tools of every class whose effects are counted, and the agent that has them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::{AgentLoop, AgentLoopBuilder, Ended};
use crate::agent_loop::message::{CallResult, Message};
use crate::agent_loop::scripted::ScriptedModel;
use crate::agent_loop::tool::{Class, Tool, ToolContext, ToolError};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    pub(super) n: u32,
}

/// A tool of one number.
pub(super) fn tool<F, Fut>(name: &str, work: F) -> Tool
where
    F: Fn(ToolContext, u32) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::new(name, "a tool", move |ctx, arguments: Arguments| {
        work(ctx, arguments.n)
    })
}

/// What the tools have done: how often, by idempotency key.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<BTreeMap<String, u32>>>);

impl World {
    fn happen(&self, key: &str) {
        *self
            .0
            .lock()
            .expect("a lock")
            .entry(key.to_owned())
            .or_default() += 1;
    }

    fn has_happened(&self, key: &str) -> bool {
        self.0.lock().expect("a lock").contains_key(key)
    }

    /// How often each call of a tool had its effect.
    pub(super) fn by_key(&self) -> BTreeMap<String, u32> {
        self.0.lock().expect("a lock").clone()
    }

    pub(super) fn effects(&self, tool: &str) -> u32 {
        let part = format!("/tool/{tool}/");
        let by_key = self.by_key();
        by_key
            .iter()
            .filter(|(key, _)| key.contains(&part))
            .map(|(_, count)| count)
            .sum()
    }

    pub(super) fn all_effects(&self) -> u32 {
        self.by_key().values().sum()
    }

    /// A tool that has its effect in the middle of its awaits.
    fn tool(&self, name: &str) -> Tool {
        let world = self.clone();
        tool(name, move |ctx, n| {
            let world = world.clone();
            async move {
                pass().await;
                world.happen(ctx.idempotency_key());
                pass().await;
                Ok(format!("{n} done"))
            }
        })
    }

    pub(super) fn builder(&self, model: ScriptedModel) -> AgentLoopBuilder {
        let world = self.clone();
        let check = move |ctx: ToolContext, _: Arguments| {
            let world = world.clone();
            async move {
                pass().await;
                let happened = world.has_happened(ctx.idempotency_key());
                Ok(happened.then(|| "found done".to_owned()))
            }
        };
        AgentLoop::builder(model)
            .tool(self.tool("look").class(Class::ReadOnly).parallel_safe())
            .tool(self.tool("fetch").class(Class::Idempotent).parallel_safe())
            .tool(self.tool("write").class(Class::SideEffect))
            .tool(self.tool("order").verified_by(check))
    }

    pub(super) fn agent(&self, model: ScriptedModel) -> AgentLoop {
        self.builder(model).build().expect("an agent")
    }
}

/// Comes back once.
pub(super) async fn pass() {
    struct Once(bool);
    impl Future for Once {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    Once(false).await;
}

/// Every result of a conversation, in order.
pub(super) fn results(ended: &Ended) -> Vec<CallResult> {
    let mut results = Vec::new();
    for message in &ended.messages {
        if let Message::Tools { results: more } = &**message {
            results.extend(more.iter().cloned());
        }
    }
    results
}
