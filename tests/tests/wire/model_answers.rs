//! Answers of a model provider that have no end, no bound or another form than they should: how long
//! they are waited for, how much of them is read, and what is said of them.

use std::process::Command;
use std::time::Duration;

use harness_tests::BOUND;
use harness_tests::provider::{Provider, Reply};
use harness_tests::raw::within;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use worker_sdk::agent_loop::{
    Anthropic, Failure, Finish, Model, ModelError, OpenAi, Pieces, Request, Response,
};

const KEY: &str = "sk-compatible-not-to-be-seen";

/// A chunk of a chat completion.
fn chunk(delta: Value, finish: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    let chunk = json!({"id": "c", "model": "local-1", "choices": [choice]});
    format!("data: {chunk}\n\n")
}

/// An answer to its finish reason, behind which more may come.
fn finished() -> String {
    chunk(json!({"content": "Größe."}), Value::Null) + &chunk(json!({}), json!("stop"))
}

fn model(url: &str) -> OpenAi {
    let model = OpenAi::new("local", KEY).expect("a key");
    model.base_url(url).expect("an address")
}

async fn ask(model: &impl Model) -> Result<Response, ModelError> {
    let request = Request::new("hello");
    within(BOUND, model.complete(&request, &mut Pieces::ignored())).await
}

/// How a call of a provider that gives this answer fails.
async fn failed(reply: Reply) -> ModelError {
    let provider = Provider::start([reply]).await;
    ask(&model(&provider.url())).await.expect_err("no answer")
}

/// Far beyond the bound of a test.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn an_answer_without_an_end_is_given_up_however_steadily_it_comes() {
    let pings = ": ping\n\n".repeat(10_000);
    let provider = Provider::start([Reply::events(pings).slow(8, Duration::from_millis(20))]).await;
    let model = model(&provider.url()).stall_timeout(LONG);
    let model = model.call_timeout(Duration::from_millis(400));
    let error = ask(&model).await.expect_err("no answer");
    assert_eq!(error.failure(), Failure::Cut);
    assert!(error.message().contains("400ms"), "{error}");
}

#[tokio::test]
async fn what_may_come_behind_a_finish_reason_is_waited_for_only_shortly() {
    let body = finished();
    let pings = ": ping\n\n".repeat(100_000);
    let steady = Reply::events(format!("{body}{pings}"));
    for reply in [
        Reply::events(&*body).stall(body.len()),
        steady.slow(body.len(), Duration::from_millis(200)),
    ] {
        let provider = Provider::start([reply]).await;
        let model = model(&provider.url()).stall_timeout(LONG);
        assert_eq!(ask(&model).await.expect("an answer").text(), "Größe.");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_behind_the_finish_reason_broke_nothing() {
    let body = finished();
    let more = format!("{body}data: {}\n\n", json!({"choices": [], "usage": {}}));
    for at in [body.len(), body.len() + 9] {
        let provider = Provider::start([Reply::events(&*more).cut(at)]).await;
        let response = ask(&model(&provider.url())).await.expect("an answer");
        assert_eq!(
            (response.text().as_str(), response.finish),
            ("Größe.", Finish::Stop)
        );
    }
}

#[tokio::test]
async fn a_status_is_not_held_up_by_a_body_that_does_not_come() {
    for reply in [
        Reply::json(401, "x".repeat(10_000)).slow(1, Duration::from_millis(50)),
        Reply::json(401, "x".repeat(10_000)).stall(100),
    ] {
        let provider = Provider::start([reply]).await;
        let model = model(&provider.url()).stall_timeout(LONG);
        let error = ask(&model).await.expect_err("no answer");
        assert_eq!(
            (error.failure(), error.status()),
            (Failure::Credentials, Some(401))
        );
    }
}

#[tokio::test]
async fn no_more_of_an_answer_is_read_than_fits() {
    let part = chunk(json!({"content": "x".repeat(1 << 20)}), Value::Null);
    let whole = json!({"choices": [{"message": {"content": "x".repeat(65 << 20)}}]});
    for reply in [
        Reply::events(part.repeat(65)),
        Reply::json(200, whole.to_string()),
    ] {
        let error = failed(reply).await;
        assert_eq!(error.failure(), Failure::Unreadable);
        assert!(error.message().contains("67108864 bytes"), "{error}");
    }
}

#[tokio::test]
async fn a_key_that_a_provider_repeats_is_in_no_error() {
    let said = format!("no access with Bearer {KEY}");
    let error = json!({"error": {"message": said, "type": "authentication_error"}}).to_string();
    let padded = json!({"error": {"message": format!("{}{said}", "x".repeat(460))}}).to_string();
    for reply in [
        Reply::json(401, &*error),
        Reply::json(400, &*padded),
        Reply::json(200, &*error),
        Reply::json(200, json!({"said": said}).to_string()),
        Reply::json(500, &*said),
        Reply::events(format!("data: {error}\n\n")),
        Reply::events(chunk(json!({}), json!(said))),
        Reply::events("").only_header("content-type", &said),
    ] {
        let error = failed(reply.clone()).await;
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("sk-compat"), "{reply:?}: {shown}");
        assert!(
            shown.contains("[redacted]") || !shown.contains("Bearer"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn what_comes_from_no_api_is_named_and_not_asked_for_again() {
    let page = || Reply::json(200, "<html>").only_header("content-type", "text/html; charset=x");
    let provider = Provider::start([page(), page()]).await;
    let model = model(&format!("{}/app?code=not-shown", provider.url()));
    let mut request = Request::new("hello");
    for stream in [true, false] {
        request.stream = stream;
        let result = model.complete(&request, &mut Pieces::ignored()).await;
        let error = result.expect_err("no answer");
        assert_eq!(error.failure(), Failure::Unreadable);
        let url = format!("{}/app/chat/completions answered 200", provider.url());
        for part in [url.as_str(), "text/html", "is the address right?"] {
            assert!(error.message().contains(part), "{error}");
        }
        assert!(!error.message().contains("not-shown"), "{error}");
    }
    let asked = &provider.asked()[0];
    assert_eq!(asked.query, "code=not-shown");

    let error = failed(Reply::json(200, r#"{"detail":"no such model"}"#)).await;
    assert_eq!(error.failure(), Failure::Unreadable);
    assert!(error.message().contains("no such model"), "{error}");
}

#[tokio::test]
async fn an_answer_that_comes_whole_where_a_stream_was_asked_for_is_one() {
    let whole = json!({"id": "c", "model": "local-1", "choices": [{
        "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop",
    }], "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    let message = json!({"type": "message", "id": "m", "model": "claude-x-1",
        "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"});
    let provider = Provider::start([
        Reply::json(200, whole.to_string()),
        Reply::json(200, message.to_string()),
    ])
    .await;
    let response = ask(&model(&provider.url())).await.expect("an answer");
    assert_eq!(response.text(), "done");
    assert_eq!(response.usage.output_tokens, Some(2));
    let model = Anthropic::new("claude-x", KEY).and_then(|model| model.base_url(&provider.url()));
    let response = ask(&model.expect("a model")).await.expect("an answer");
    assert_eq!(response.text(), "done");
}

/// Takes one connection, and answers what is no HTTP.
async fn stranger() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener
        .local_addr()
        .expect("a bound socket has an address");
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.expect("a connection");
        let mut asked = [0; 1024];
        let _ = peer.read(&mut asked).await;
        let _ = peer.write_all(b"220 mail.example ESMTP\r\n").await;
    });
    address.to_string()
}

#[tokio::test]
async fn why_no_answer_begins_is_told_apart() {
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener
            .local_addr()
            .expect("a bound socket has an address")
    };
    for (url, said) in [
        (format!("http://{gone}"), "refuses the connection"),
        (format!("https://{}", stranger().await), "the TLS handshake"),
        (format!("http://{}", stranger().await), "no HTTP answer"),
    ] {
        let error = ask(&model(&url)).await.expect_err("no answer");
        assert_eq!(error.failure(), Failure::Transient, "{error}");
        assert!(error.message().contains(said), "{url}: {error:?}");
    }
}

/// The test that is run by itself in the next one.
#[tokio::test]
async fn an_answer_comes_from_this_machine() {
    let provider = Provider::start([Reply::events(finished())]).await;
    let response = ask(&model(&provider.url())).await.expect("an answer");
    assert_eq!(response.text(), "Größe.");
}

#[test]
fn a_call_to_this_machine_goes_through_no_proxy() {
    let this = std::env::current_exe().expect("a program of tests");
    let mut test = Command::new(this);
    test.args([
        "--exact",
        "model_answers::an_answer_comes_from_this_machine",
    ]);
    // Nobody is behind this port.
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        test.env(name, "http://127.0.0.1:1");
    }
    let ended = test.env_remove("NO_PROXY").env_remove("no_proxy").output();
    let ended = ended.expect("the program runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}"
    );
}
