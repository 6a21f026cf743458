//! What an operator is told, and what not.

mod calls;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::Once;
use std::time::Duration;

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::super::{AgentLoop, Ended};
use crate::agent_loop::failure::{Failure, ModelError};
use crate::agent_loop::machine::End;
use crate::agent_loop::response::Usage;
use crate::agent_loop::scripted::{Line, ScriptedModel};
use crate::agent_loop::tool::{Tool, ToolContext, ToolError};
use crate::testing::{self, ContextBuilder};

/// Keeps every event and span of its thread as text, and each span's parent. It is the subscriber of
/// the whole program: whether an event is wanted is remembered for all threads, so one that came and
/// went with a test would be missed by another.
struct Listener;

thread_local! {
    static HEARD: RefCell<Heard> = RefCell::default();
}

/// Runs the agent on this thread, which is the test's alone.
async fn heard(run_id: &str, agent: AgentLoop) -> (Heard, Ended) {
    heard_of(&agent, testing::context().run_id(run_id)).await
}

/// The same, of an attempt of whichever run this is the context of.
async fn heard_of(agent: &AgentLoop, run: ContextBuilder) -> (Heard, Ended) {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        tracing::subscriber::set_global_default(Listener).expect("the only subscriber");
    });
    HEARD.take();
    let (ctx, _) = run.build();
    let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
    (HEARD.take(), ended)
}

#[derive(Default)]
struct Heard {
    events: Vec<String>,
    spans: BTreeMap<u64, (String, Option<u64>)>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut text = Text(attributes.metadata().name().to_owned());
        attributes.record(&mut text);
        let parent = attributes.parent().map(Id::into_u64);
        HEARD.with_borrow_mut(|heard| {
            let id = heard.spans.len() as u64 + 1;
            heard.spans.insert(id, (text.0, parent));
            Id::from_u64(id)
        })
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        let mut text = Text(String::new());
        record.record(&mut text);
        HEARD.with_borrow_mut(|heard| {
            if let Some((known, _)) = heard.spans.get_mut(&id.into_u64()) {
                known.push_str(&text.0);
            }
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        HEARD.with_borrow_mut(|heard| heard.events.push(text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn agent() -> AgentLoop {
    let arguments = json!({"q": "rivers hunter22", "api_key": "k-123"});
    let model = ScriptedModel::new([
        Line::call("look", arguments),
        Line::text("A private answer."),
    ]);
    let schema = json!({"type": "object"});
    let look = Tool::with_schema(
        "look",
        "Looks.",
        schema,
        |_: ToolContext, _: serde_json::Value| async {
            Err::<String, _>(ToolError::permanent("no access with hunter22"))
        },
    );
    AgentLoop::builder(model)
        .tool(look)
        .secret("hunter22")
        .build()
        .expect("an agent")
}

#[tokio::test(flavor = "current_thread")]
async fn each_thing_that_happens_is_one_event_and_no_secret_is_in_it() {
    let (heard, ended) = heard("0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b3", agent()).await;
    let all = heard.events.join("\n");
    for (name, times) in [
        ("turn_start", 2),
        ("tool_dispatch", 1),
        ("tool_result", 1),
        ("final_answer", 1),
        ("response_id", 2),
    ] {
        assert_eq!(
            heard
                .events
                .iter()
                .filter(|event| event.contains(name))
                .count(),
            times,
            "{name}: {all}"
        );
    }
    let dispatch = heard
        .events
        .iter()
        .find(|event| event.contains("tool_dispatch"));
    let dispatch = dispatch.expect("it is dispatched");
    for part in ["rivers", "attempt=1", "call_id=\"call_1_0\""] {
        assert!(dispatch.contains(part), "{part}: {dispatch}");
    }
    for hidden in ["hunter22", "k-123", "A private answer"] {
        assert!(!all.contains(hidden), "{hidden}: {all}");
    }
    let told = super::setting::results(&ended);
    assert_eq!(told[0].text, "no access with [redacted]");
}

impl Heard {
    /// The events of this name, in order.
    fn of(&self, name: &str) -> Vec<&str> {
        let message = format!("message={name}");
        let named = self.events.iter().map(String::as_str);
        named.filter(|event| event.contains(&message)).collect()
    }
}

/// An error that is because of another.
#[derive(Debug, thiserror::Error)]
#[error("the handshake failed")]
struct Handshake(#[source] std::io::Error);

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn each_failed_try_of_a_model_call_is_an_event_and_the_end_tells_its_causes() {
    let cause = || {
        Handshake(std::io::Error::other(
            "the certificate of hunter22 is unknown",
        ))
    };
    let error = |failure| ModelError::new(failure, "not reached").with_cause(cause());
    let failures = [
        error(Failure::Transient).with_retry_after(Some(Duration::from_secs(7))),
        error(Failure::Rejected).with_status(Some(404)),
    ];
    let model = ScriptedModel::new([]).failing(failures);
    let agent = AgentLoop::builder(model).secret("hunter22").build();
    let (heard, ended) = heard("r", agent.expect("an agent")).await;
    let failed: Vec<&String> = heard
        .events
        .iter()
        .filter(|event| event.contains("model_error"))
        .collect();
    assert_eq!(failed.len(), 2, "{failed:?}");
    let told = "not reached: the handshake failed: the certificate of [redacted] is unknown";
    for (event, parts) in [
        (
            failed[0],
            ["attempt=1", "ModelUnavailable", "retry_in_ms=7"],
        ),
        (failed[1], ["attempt=2", "ModelRejected", "status=404"]),
    ] {
        for part in parts.into_iter().chain([told]) {
            assert!(event.contains(part), "{part}: {event}");
        }
    }
    assert!(!failed[1].contains("retry_in_ms"), "{}", failed[1]);
    assert!(
        matches!(&ended.end, End::ModelFailed(failed) if failed.message == told),
        "{:?}",
        ended.end
    );
}

#[tokio::test(flavor = "current_thread")]
async fn spans_have_the_names_of_the_conventions_and_their_parent() {
    let (heard, _) = heard("0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b3", agent()).await;
    let (&root, (invoke, _)) = heard
        .spans
        .iter()
        .find(|(_, (text, _))| text.starts_with("invoke_agent"))
        .expect("the run");
    assert!(
        invoke.contains("0192f0c12d3e7a4b8c5d6e7f8091a2b3"),
        "{invoke}"
    );
    let below = |name: &str| {
        let spans = heard
            .spans
            .values()
            .filter(move |(text, _)| text.starts_with(name));
        spans.collect::<Vec<_>>()
    };
    assert_eq!((below("chat").len(), below("execute_tool").len()), (2, 1));
    for (text, parent) in below("chat").into_iter().chain(below("execute_tool")) {
        assert_eq!(*parent, Some(root), "{text}");
        assert!(text.contains("gen_ai.operation.name"), "{text}");
    }
    assert!(below("chat")[0].0.contains("gen_ai.usage.output_tokens"));
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn what_a_failed_try_used_is_in_its_span() {
    let usage = Usage {
        input_tokens: Some(17),
        ..Usage::default()
    };
    let cut = ModelError::new(Failure::Cut, "cut").with_usage(usage);
    let model = ScriptedModel::new([Line::text("hello")]).failing([cut]);
    let agent = AgentLoop::builder(model).build().expect("an agent");
    let (heard, _) = heard("r", agent).await;
    let failed = |(text, _): &(String, _)| text.contains("ModelCut");
    let (span, _) = heard.spans.into_values().find(failed).expect("its span");
    assert!(span.contains("gen_ai.usage.input_tokens=17"), "{span}");
}
