//! Model calls over real HTTP: what a provider does wrong, and what the loop makes of it.

use std::time::{Duration, Instant};

use harness_tests::provider::{Provider, Reply};
use harness_tests::raw::within;
use harness_tests::{BOUND, provider};
use serde_json::{Value, json};
use worker_sdk::agent_loop::{
    AgentLoop, Anthropic, Class, End, Ended, Failure, Model, ModelError, ModelRetry, OpenAi,
    Pieces, Request, Response, Tool, ToolContext, ToolError,
};
use worker_sdk::testing;

/// The events of an answer of Anthropic's.
fn message(blocks: &str, stop_reason: &str) -> String {
    let start = json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "model": "claude-x-1", "usage": {"input_tokens": 9},
    }});
    format!(
        "event: message_start\ndata: {start}\n\n{blocks}event: message_delta\ndata: {}\n\n\
         event: message_stop\ndata: {}\n\n",
        json!({"type": "message_delta", "delta": {"stop_reason": stop_reason},
            "usage": {"output_tokens": 5}}),
        json!({"type": "message_stop"}),
    )
}

fn block(index: u32, begin: &Value, delta: &Value) -> String {
    let event = |data: Value| format!("event: x\ndata: {data}\n\n");
    event(json!({"type": "content_block_start", "index": index, "content_block": begin}))
        + &event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
        + &event(json!({"type": "content_block_stop", "index": index}))
}

fn text(text: &str) -> String {
    let begin = json!({"type": "text", "text": ""});
    block(0, &begin, &json!({"type": "text_delta", "text": text}))
}

fn call(id: &str, arguments: &str) -> String {
    let begin = json!({"type": "tool_use", "id": id, "name": "write", "input": {}});
    let delta = json!({"type": "input_json_delta", "partial_json": arguments});
    block(1, &begin, &delta)
}

fn answer() -> String {
    message(&text("Größe."), "end_turn")
}

const KEY: &str = "sk-ant-not-to-be-seen";

fn anthropic(provider: &Provider) -> Anthropic {
    let model = Anthropic::new("claude-x", KEY).expect("a key");
    let model = model.base_url(&provider.url()).expect("an address");
    model.stall_timeout(Duration::from_millis(300))
}

async fn ask(provider: &Provider) -> Result<Response, ModelError> {
    let model = anthropic(provider);
    let request = Request::new("hello");
    within(BOUND, model.complete(&request, &mut Pieces::ignored())).await
}

#[tokio::test]
async fn an_answer_comes_whole_however_slowly_its_bytes_come() {
    for reply in [
        Reply::events(answer()),
        Reply::events(answer()).slow(7, Duration::from_millis(1)),
        Reply::events(answer()).slow(1, Duration::from_micros(100)),
    ] {
        let provider = Provider::start([reply]).await;
        let response = ask(&provider).await.expect("an answer");
        assert_eq!(response.text(), "Größe.");
        assert_eq!(response.usage.output_tokens, Some(5));
        let asked = &provider.asked()[0];
        assert_eq!(asked.path, "/v1/messages");
        assert_eq!(asked.headers["x-api-key"], KEY);
        assert_eq!(asked.body["max_tokens"], 4096);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_or_stalls_is_none() {
    let body = answer();
    let end = body.find("event: message_stop").expect("the last event");
    for at in [0, 1, body.len() / 3, end, body.len() - 1] {
        for reply in [
            Reply::events(&*body).cut(at),
            Reply::events(&*body).stall(at),
        ] {
            let provider = Provider::start([reply.clone()]).await;
            let error = ask(&provider).await.expect_err("no answer");
            assert_eq!(error.failure(), Failure::Cut, "{reply:?}: {error:?}");
        }
    }
    // Behind the last event nothing matters.
    let more = format!("{body}: padding that does not come\n\n");
    for reply in [
        Reply::events(&*more).cut(body.len()),
        Reply::events(&*more).stall(body.len()),
    ] {
        let provider = Provider::start([reply]).await;
        assert_eq!(ask(&provider).await.expect("an answer").text(), "Größe.");
    }
}

#[tokio::test]
async fn what_an_answer_used_that_broke_off_counts() {
    let body = answer();
    let begun = body.find("event: x").expect("its first block");
    let error =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let provider = Provider::start([
        Reply::events(&*body).cut(begun),
        Reply::events(&*body).stall(begun),
        Reply::events(body[..begun].to_owned() + error),
        // Nothing is known of one that broke off before it began, or was refused.
        Reply::events(&*body).cut(1),
        Reply::json(503, "{}"),
        Reply::events(&*body),
    ])
    .await;
    let ended = run(&agent(anthropic(&provider))).await;
    assert!(matches!(ended.end, End::Answered { .. }), "{ended:?}");
    assert_eq!(provider.asked().len(), 6);
    let used = (ended.used.input_tokens, ended.used.output_tokens);
    assert_eq!(used, (4 * 9, 5));
}

#[tokio::test]
async fn an_error_with_status_200_is_one() {
    for (body, failure) in [
        (
            r#"{"error":{"code":"insufficient_quota","message":"x"}}"#,
            Failure::Billing,
        ),
        (
            r#"{"error":{"code":503,"message":"x"}}"#,
            Failure::Transient,
        ),
        (r#"{"type":"message","content":[]}"#, Failure::Cut),
        (r#"{"detail":"x"}"#, Failure::Unreadable),
    ] {
        let provider = Provider::start([Reply::json(200, body)]).await;
        assert_eq!(
            ask(&provider).await.expect_err(body).failure(),
            failure,
            "{body}"
        );
    }
}

#[tokio::test]
async fn no_redirect_is_followed_with_the_key() {
    for status in [301, 302, 307, 308] {
        let other = Provider::start([Reply::events(answer())]).await;
        let elsewhere = format!("{}/v1/messages", other.url());
        let provider = Provider::start([Reply::json(status, "").header("location", &elsewhere)]);
        let error = ask(&provider.await).await.expect_err("no answer");
        assert_eq!(error.failure(), Failure::Rejected, "{status}");
        assert!(other.asked().is_empty(), "{status}");
    }
}

#[tokio::test]
async fn nobody_there_is_an_error_that_may_pass_and_shows_no_key() {
    let provider = Provider::start([]).await;
    let model = anthropic(&provider);
    drop(provider);
    let request = Request::new("hello");
    let closed = harness_tests::eventually_async("the port is closed", BOUND, || async {
        let result = model.complete(&request, &mut Pieces::ignored()).await;
        result
            .err()
            .filter(|error| error.failure() == Failure::Transient)
    });
    let error = closed.await;
    let shown = format!("{error:?} {error} {model:?}");
    assert!(!shown.contains(KEY), "{shown}");
}

#[tokio::test]
async fn every_form_of_retry_after_is_read_from_real_headers() {
    let busy = |status| {
        Reply::json(
            status,
            r#"{"error":{"type":"rate_limit_error","message":"x"}}"#,
        )
    };
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (reply, wait) in [
        (busy(429).header("retry-after", "7"), Some(7_000)),
        (busy(429).header("retry-after", "0.5"), Some(500)),
        (busy(429).header("retry-after-ms", "1250"), Some(1_250)),
        (
            busy(429).header("x-ratelimit-reset-tokens", "1m2s"),
            Some(62_000),
        ),
        (
            busy(503)
                .header("date", date)
                .header("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"),
            Some(30_000),
        ),
        (
            Reply::json(
                429,
                r#"{"error":{"message":"x","details":[{"retryDelay":"3s"}]}}"#,
            ),
            Some(3_000),
        ),
        (busy(529), None),
        (busy(500), None),
    ] {
        let provider = Provider::start([reply.clone()]).await;
        let error = ask(&provider).await.expect_err("busy");
        assert_eq!(error.failure(), Failure::Transient, "{reply:?}");
        assert_eq!(
            error.retry_after(),
            wait.map(Duration::from_millis),
            "{reply:?}"
        );
    }
}

/// An agent whose one tool counts its calls by the text it gives.
fn agent(model: impl Model) -> AgentLoop {
    let write = |_: ToolContext, arguments: Value| async move { Ok::<_, ToolError>(arguments) };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let retry = ModelRetry {
        initial: Duration::from_millis(1),
        max: Duration::from_millis(5),
        ..ModelRetry::default()
    };
    AgentLoop::builder(model)
        .tool(Tool::with_schema("write", "Writes.", schema, write).class(Class::SideEffect))
        .retry(retry)
        .build()
        .expect("an agent")
}

async fn run(agent: &AgentLoop) -> Ended {
    let (ctx, _) = testing::context().build();
    within(BOUND, agent.run(&ctx, &"go".into()))
        .await
        .expect("a run")
}

#[tokio::test]
async fn a_run_gets_over_what_passes_and_sends_its_results_back() {
    let stream_error =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let calls = message(&call("toolu_1", r#"{"n": "1"}"#), "tool_use");
    let provider = Provider::start([
        Reply::json(
            529,
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
        ),
        Reply::events(stream_error),
        Reply::json(429, "{}").header("retry-after-ms", "1"),
        Reply::events(&*calls).cut(calls.len() / 2),
        Reply::events(&*calls),
        Reply::events(answer()),
    ])
    .await;
    let ended = run(&agent(anthropic(&provider))).await;
    assert!(
        matches!(&ended.end, End::Answered { text, .. } if text == "Größe."),
        "{:?}",
        ended.end
    );
    assert_eq!((ended.turns, ended.tool_calls), (2, 1));
    let asked = provider.asked();
    assert_eq!(asked.len(), 6);
    let last = &asked[5].body["messages"];
    assert_eq!(last[1]["content"][0]["id"], "toolu_1");
    assert_eq!(last[2]["content"][0]["tool_use_id"], "toolu_1");
    assert_eq!(
        last[2]["content"][0]["content"], r#"{"n":1}"#,
        "the coerced value"
    );
}

#[tokio::test]
async fn what_will_not_pass_is_asked_once() {
    for (status, body, kind) in [
        (
            401,
            r#"{"error":{"type":"authentication_error","message":"x"}}"#,
            "Credentials",
        ),
        (
            400,
            r#"{"error":{"type":"invalid_request_error","message":"x"}}"#,
            "ModelRejected",
        ),
        (
            429,
            r#"{"error":{"code":"insufficient_quota","message":"x"}}"#,
            "Billing",
        ),
        (
            400,
            r#"{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}"#,
            "ContextFull",
        ),
    ] {
        let provider = Provider::start([Reply::json(status, body)]).await;
        let ended = run(&agent(anthropic(&provider))).await;
        let said = format!("{:?}", ended.end);
        assert!(said.contains(kind), "{said}");
        assert_eq!(provider.asked().len(), 1, "{kind}");
    }
    let long = Reply::json(429, "{}").header("retry-after", "3600");
    let provider = Provider::start([long]).await;
    let begin = Instant::now();
    let ended = run(&agent(anthropic(&provider))).await;
    assert!(matches!(&ended.end, End::ModelFailed(failed) if failed.may_pass));
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "it does not wait an hour"
    );
}

#[tokio::test]
async fn openai_compatible_servers_are_asked_at_their_own_address() {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!(
            "data: {}\n\n",
            json!({"id": "c", "model": "local-1", "choices": [choice]})
        )
    };
    let calls = json!([{"id": "", "function": {"name": "write", "arguments": "{\"n\":1}"}}]);
    let first =
        chunk(json!({"tool_calls": calls}), Value::Null) + &chunk(json!({}), json!("tool_calls"));
    let whole = json!({"id": "c", "choices": [{
        "message": {"content": "done", "tool_calls": null}, "finish_reason": "stop",
    }], "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    let provider = Provider::start([
        provider::Reply::events(first + "data: [DONE]\n\n"),
        provider::Reply::events(chunk(json!({"content": "done"}), json!("stop"))),
        Reply::json(200, whole.to_string()),
    ])
    .await;
    let model = || {
        let model = OpenAi::new("local", "sk-1").expect("a key");
        model
            .base_url(&format!("{}/v1/", provider.url()))
            .expect("an address")
    };
    let ended = run(&agent(model())).await;
    assert!(
        matches!(&ended.end, End::Answered { text, .. } if text == "done"),
        "{:?}",
        ended.end
    );
    let mut request = Request::new("hello");
    request.stream = false;
    let response = model()
        .complete(&request, &mut Pieces::ignored())
        .await
        .expect("an answer");
    assert_eq!(
        (response.text().as_str(), response.usage.input_tokens),
        ("done", Some(3))
    );

    let asked = provider.asked();
    assert_eq!(asked[0].path, "/v1/chat/completions");
    assert_eq!(asked[0].headers["authorization"], "Bearer sk-1");
    assert_eq!(asked[0].body["max_tokens"], 4096);
    let messages = &asked[1].body["messages"];
    assert_eq!(
        messages[1]["tool_calls"][0]["id"], "call_1_0",
        "an empty id is made"
    );
    assert_eq!(messages[2]["tool_call_id"], "call_1_0");
}

#[tokio::test]
async fn a_provider_that_cannot_be_set_up_says_why_and_shows_no_key() {
    let broken = Anthropic::new("claude-x", "sk\nnot-to-be-seen").expect_err("no header");
    assert!(!format!("{broken:?} {broken}").contains("not-to-be-seen"));
    for url in ["", "api.anthropic.com", "http://me:pw@x"] {
        let model = Anthropic::new("claude-x", "k").expect("a key");
        assert!(model.base_url(url).is_err(), "{url}");
    }
}
