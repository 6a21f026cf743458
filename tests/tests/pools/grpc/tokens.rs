//! The token of a process: what it is good for, and that whatever else is shown is refused, typed
//! and named in the log. The processes here do nothing; the test calls in their place.

use std::time::Duration;

use harness_proto::v1::{
    self, ErrorCode, Hello, Released, attach_request::Frame, attach_response, hello::Previous,
};
use harness_tests::raw::{self, RawSlot, reason, typed, within};
use harness_tests::{BOUND, Harness, Process, Signal, eventually};
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::faults::signal;
use super::{Make, answers, reply, sh};
use crate::{lives, pids, start};

/// What a process was given.
struct Given {
    address: String,
    authorization: String,
}

/// A process that tells what it was given and waits.
const TELLS: &str = "env >tmp.$$; mv tmp.$$ env.$$; exec sleep 1000";

/// A harness with a pool of the agent `idle` whose process is there and does nothing.
fn idle(settings: &str) -> Harness {
    Harness::builder()
        .config(sh("idle", TELLS, settings))
        .start()
}

/// What the only process of the pool was given.
fn given(harness: &Harness) -> Given {
    // One that has not executed its command has none yet.
    let pid = eventually("a process", BOUND, || {
        let first = pids(&harness.pool("idle")).first().copied();
        first.filter(|pid| *pid != 0)
    });
    given_to(harness, pid)
}

/// What a process was given.
fn given_to(harness: &Harness, pid: u64) -> Given {
    let text = eventually("the process tells", BOUND, || {
        std::fs::read_to_string(harness.folder().join(format!("env.{pid}"))).ok()
    });
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.strip_prefix('='))
            .expect("a variable")
            .to_owned()
    };
    Given {
        address: value("HARNESS_ADDRESS"),
        authorization: format!("Bearer {}", value("HARNESS_TOKEN")),
    }
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

/// A message that shows an `authorization`.
fn shown<T>(message: T, authorization: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = authorization.parse().expect("visible letters");
    request.metadata_mut().insert("authorization", value);
    request
}

/// Opens a call with a token and says hello; the call, welcomed, or how it ended.
async fn attach(channel: Channel, authorization: &str, hello: Hello) -> Result<RawSlot, Status> {
    let mut slot = RawSlot::open_as(channel, Some(authorization)).await?;
    slot.send(Frame::Hello(hello)).await;
    let first = within(raw::SOON, slot.inbound.message()).await?;
    assert!(first.is_some(), "a welcome, not OK");
    Ok(slot)
}

#[track_caller]
fn refused<T>(call: Result<T, Status>) -> Status {
    match call {
        Ok(_) => panic!("it must be refused"),
        Err(status) => status,
    }
}

#[test]
fn on_the_socket_of_a_pool_a_call_without_a_good_token_is_refused_and_logged() {
    let mut harness = idle("");
    let given = given(&harness);
    let wrong = "0".repeat(64);
    runtime().block_on(async {
        let channel = raw::connect(&given.address).await;
        for (authorization, part) in [
            (None, "HARNESS_TOKEN"),
            (Some("Basic YTpi".to_owned()), "Bearer <token>"),
            (Some("Bearer short".to_owned()), "Bearer <token>"),
            (Some(format!("Bearer {wrong}")), "is not good here"),
        ] {
            let call = RawSlot::open_as(channel.clone(), authorization.as_deref()).await;
            let status = refused(call);
            let told = typed(&status, Code::Unauthenticated, ErrorCode::Unauthenticated);
            assert!(told.message.contains(part), "{}", told.message);
            assert_eq!(reason(&status), "UNAUTHENTICATED");
        }
        let ask = raw::ask("idle", "1", BOUND);
        let asked = raw::runs(&channel).ask(ask).await;
        let _ = typed(
            &refused(asked),
            Code::Unauthenticated,
            ErrorCode::Unauthenticated,
        );
    });
    for part in ["this socket is for the processes", "is not good here"] {
        let line = harness.process().wait_for_line(part);
        assert!(
            line.contains("audit") && line.contains("harness.v1.WorkerService/Attach"),
            "{line}"
        );
    }
    assert!(
        !harness.process().stderr().contains(&wrong),
        "a token is not logged"
    );
}

#[test]
fn a_token_is_good_for_any_number_of_calls_and_one_attach_at_a_time() {
    let mut harness = idle("");
    let given = given(&harness);
    let hello = raw::hello("idle");
    runtime().block_on(async {
        let channel = raw::connect(&given.address).await;
        let token = given.authorization.as_str();
        let mut first = attach(channel.clone(), token, hello.clone())
            .await
            .expect("let in");
        harness.wait_for_full("idle");

        // The same worker, and over the harness's own address, too.
        for address in [given.address.as_str(), harness.address()] {
            let second = attach(raw::connect(address).await, token, hello.clone()).await;
            let status = refused(second);
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert_eq!(reason(&status), "TOO_MANY");
            assert!(status.message().contains("has a call open"), "{status:?}");
        }

        // The first is none the worse for it, and other calls go on beside it.
        let mut runs = raw::runs(&channel);
        let asking = tokio::spawn(async move {
            let ask = raw::ask("idle", "\"hi\"", BOUND);
            runs.ask(shown(ask, &given.authorization)).await
        });
        let request = first.request().await;
        assert_eq!(
            request.caller.as_ref().expect("a caller").subject,
            "pool/idle"
        );
        first.reply(&request, "\"ho\"").await;
        let answer = asking.await.expect("no panic").expect("an answer");
        assert_eq!(
            answer.get_ref().payload.as_ref().expect("a payload").data,
            "\"ho\""
        );
    });
    harness
        .process()
        .wait_for_line("process 1 of pool idle has a call open");
}

#[test]
fn a_token_is_good_for_the_next_call_when_the_first_is_over() {
    let harness = idle("stop = { cancel_grace = \"20s\" }");
    let given = given(&harness);
    let mut hello = raw::hello("idle");
    runtime().block_on(async {
        let channel = raw::connect(&given.address).await;
        let token = given.authorization.as_str();
        let mut slot = attach(channel.clone(), token, hello.clone())
            .await
            .expect("let in");
        let mut runs = raw::runs(&raw::connect(harness.address()).await);
        let ask = raw::ask("idle", "1", Duration::from_millis(300));
        let asking = tokio::spawn(async move { runs.ask(ask).await });
        let request = slot.request().await;
        assert_eq!(slot.end().await.code(), Code::DeadlineExceeded);
        let asked = refused(asking.await.expect("no panic"));
        let _ = typed(&asked, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);

        // One that has not said that its work has stopped is not believed.
        let status = refused(attach(channel.clone(), token, hello.clone()).await);
        assert_eq!(reason(&status), "DRAINED");

        hello.previous = Some(Previous::Released(Released {
            run_id: request.run_id,
            attempt: request.attempt,
            lease: request.lease,
        }));
        let _slot = attach(channel, token, hello).await.expect("let in");
        let view = harness.wait_for_full("idle");
        assert_eq!(view["processes"][0]["state"], "READY");
        assert_eq!(view["stopped"], json!([]), "{view}");
    });
}

#[test]
fn a_process_that_loses_its_call_may_come_back_and_is_ended_when_it_does_not() {
    let harness = idle("ready_timeout = \"3s\"");
    let given = given(&harness);
    let (hello, token) = (raw::hello("idle"), given.authorization.as_str());
    let pid = pids(&harness.pool("idle"))[0];
    for _ in 0..3 {
        // Its connection goes with its runtime, without a word.
        let connection = runtime();
        let slot = connection.block_on(async {
            let channel = raw::connect(&given.address).await;
            attach(channel, token, hello.clone()).await
        });
        harness.wait_for_full("idle");
        connection.shutdown_background();
        drop(slot.expect("let in"));
        harness.wait_for_pool("idle", "detached", |pool| {
            pool["processes"][0]["state"] == "DETACHED"
        });
    }
    assert!(lives(pid));
    let view = harness.wait_for_pool("idle", "another process", |pool| {
        pool["stopped"][0]["pid"] == json!(pid)
    });
    assert_eq!(view["stopped"][0]["reason"], "it was not ready in time");
    assert_eq!(
        (&view["crashes"], &view["failed_starts"]),
        (&json!(0), &json!(0)),
        "{view}"
    );
}

#[test]
fn a_process_whose_call_breaks_under_an_ask_resumes_it_and_is_not_stopped() {
    let window = "[limits]\ninteractive_reattach_window = \"5m\"\n\n";
    let pool = sh("idle", TELLS, "stop = { cancel_grace = \"100ms\" }");
    let harness = Harness::builder().config(window.to_owned() + &pool).start();
    let given = given(&harness);
    let hello = raw::full_hello("idle");
    runtime().block_on(async {
        let token = given.authorization.as_str();
        let channel = raw::connect(&given.address).await;
        let mut slot = attach(channel, token, hello.clone()).await.expect("let in");
        let mut runs = raw::runs(&raw::connect(harness.address()).await);
        let asking = tokio::spawn(async move { runs.ask(raw::ask("idle", "1", BOUND)).await });
        let request = slot.request().await;
        drop(slot);
        let channel = raw::connect(&given.address).await;
        let again = attach(channel, token, raw::resuming(hello, &request)).await;
        let slot = again.expect("it resumes");
        slot.reply(&request, "2").await;
        let answer = asking.await.expect("no panic").expect("a reply");
        assert_eq!(answer.into_inner().attempt, 1);
        let view = harness.wait_for_full("idle");
        assert_eq!(view["stopped"], json!([]), "{view}");
    });
}

#[test]
fn a_process_is_one_worker_of_one_agent() {
    let mut harness = idle("");
    let given = given(&harness);
    let token = given.authorization.as_str();
    runtime().block_on(async {
        let channel = raw::connect(&given.address).await;
        let other = attach(channel.clone(), token, raw::hello("other")).await;
        let status = refused(other);
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(reason(&status), "PERMISSION_DENIED");
        assert!(
            status.message().contains("may offer agent \"idle\""),
            "{status:?}"
        );
        let mut elsewhere = raw::hello("idle");
        elsewhere.namespace = "elsewhere".to_owned();
        let status = refused(attach(channel.clone(), token, elsewhere).await);
        assert_eq!(reason(&status), "PERMISSION_DENIED");

        let mut slot = attach(channel.clone(), token, raw::hello("idle"))
            .await
            .expect("let in");
        slot.half_close();
        slot.end_within(BOUND).await.expect("OK");
        let status = refused(attach(channel, token, raw::hello("idle")).await);
        assert_eq!(reason(&status), "INVALID_HELLO");
        assert!(status.message().contains("worker_id"), "{status:?}");
    });
    let line = harness
        .process()
        .wait_for_line("process 1 of pool idle may offer");
    assert!(
        line.contains("audit") && line.contains("\"other\""),
        "{line}"
    );
}

#[test]
fn a_token_is_for_its_agent_and_for_asking_and_for_nothing_else() {
    let harness = idle("");
    let given = given(&harness);
    runtime().block_on(async {
        for address in [given.address.as_str(), harness.address()] {
            let channel = raw::connect(address).await;
            let list = v1::ListAgentsRequest::default();
            let listed = raw::admin(&channel)
                .list_agents(shown(list, &given.authorization))
                .await;
            let told = typed(
                &refused(listed),
                Code::PermissionDenied,
                ErrorCode::PermissionDenied,
            );
            assert!(
                told.message.contains("WorkerService and RunService"),
                "{}",
                told.message
            );
            let run = v1::GetRunRequest {
                run_id: uuid::Uuid::new_v4().to_string(),
                ..v1::GetRunRequest::default()
            };
            let found = raw::runs(&channel)
                .get_run(shown(run, &given.authorization))
                .await;
            let _ = typed(&refused(found), Code::NotFound, ErrorCode::RunNotFound);
        }
    });
    let mut curl = std::process::Command::new("curl");
    let header = format!("authorization: {}", given.authorization);
    let url = format!("http://{}/healthz", harness.address());
    curl.args(["-s", "-w", "%{http_code}", "-H", &header, &url]);
    let told = Process::run("curl", curl).stdout;
    assert!(
        told.ends_with("403") && told.contains("PERMISSION_DENIED"),
        "{told}"
    );
}

#[test]
fn on_an_ordinary_listener_anybody_may_come_but_a_token_that_is_shown_must_be_good() {
    let harness = Harness::start();
    runtime().block_on(async {
        let channel = raw::connect(harness.address()).await;
        let _anybody = RawSlot::attach(channel.clone(), raw::hello("any")).await;
        let wrong = format!("Bearer {}", "0".repeat(64));
        let status = refused(RawSlot::open_as(channel.clone(), Some(&wrong)).await);
        let _ = typed(&status, Code::Unauthenticated, ErrorCode::Unauthenticated);
        let list = shown(v1::ListAgentsRequest::default(), &wrong);
        let listed = raw::admin(&channel).list_agents(list).await;
        let _ = typed(
            &refused(listed),
            Code::Unauthenticated,
            ErrorCode::Unauthenticated,
        );
    });
    let mut curl = std::process::Command::new("curl");
    let url = format!("http://{}/healthz", harness.address());
    curl.args([
        "-s",
        "-w",
        "%{http_code}",
        "-H",
        "authorization: Bearer wrong",
        &url,
    ]);
    let told = Process::run("curl", curl).stdout;
    assert!(
        told.ends_with("401") && told.contains("UNAUTHENTICATED"),
        "{told}"
    );
}

#[test]
fn the_token_of_a_reaped_process_is_good_no_more() {
    let harness = start(&Make::Rust.pool(""), &["puppet"]);
    let env = reply(&harness, &json!({"do": "env"}));
    let value = |name: &str| env[name].as_str().expect("a variable").to_owned();
    let authorization = format!("Bearer {}", value("HARNESS_TOKEN"));
    let get = |address: String| {
        let authorization = authorization.clone();
        runtime().block_on(async move {
            let channel = raw::connect(&address).await;
            let run = v1::GetRunRequest {
                run_id: uuid::Uuid::new_v4().to_string(),
                ..v1::GetRunRequest::default()
            };
            refused(
                raw::runs(&channel)
                    .get_run(shown(run, &authorization))
                    .await,
            )
        })
    };
    for address in [value("HARNESS_ADDRESS"), harness.address().to_owned()] {
        let _ = typed(&get(address), Code::NotFound, ErrorCode::RunNotFound);
    }
    let pid = super::pid(&harness);
    super::fails(
        &harness,
        &json!({"do": "exit", "code": 0}),
        "WORKER_LOST",
        &[],
    );
    harness.wait_for_pool("puppet", "another process", |pool| {
        pool["state"] == "RUNNING" && pids(pool) != [pid]
    });
    assert!(!lives(pid));
    for address in [value("HARNESS_ADDRESS"), harness.address().to_owned()] {
        let _ = typed(
            &get(address),
            Code::Unauthenticated,
            ErrorCode::Unauthenticated,
        );
    }
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn a_process_that_leaves_untold_before_it_was_asked_is_a_crash_and_a_drained_one_is_none() {
    let harness = idle("");
    let leaves = |crashes: u64, drain: bool| {
        let given = given(&harness);
        runtime().block_on(async {
            let channel = raw::connect(&given.address).await;
            let token = given.authorization.as_str();
            let mut slot = attach(channel, token, raw::hello("idle"))
                .await
                .expect("let in");
            let before = pids(&harness.wait_for_full("idle"));
            if drain {
                assert_eq!(harness.cli(["drain", "idle-raw"]).code, Some(0));
                let frame = slot.next().await;
                assert!(
                    matches!(frame, attach_response::Frame::Drain(_)),
                    "{frame:?}"
                );
            }
            slot.half_close();
            harness.wait_for_pool("idle", "another process", |pool| pids(pool) != before);
        });
        let view = harness.pool("idle");
        assert_eq!(view["crashes"], crashes, "{view}");
    };
    leaves(1, false);
    leaves(1, true);
}

#[test]
fn no_process_is_the_worker_that_another_one_is() {
    let harness = idle("size = 2");
    let view = harness.wait_for_pool("idle", "two processes", |pool| {
        pids(pool).iter().filter(|pid| **pid != 0).count() == 2
    });
    let [one, other] = [0, 1].map(|at| given_to(&harness, pids(&view)[at]));
    let hello = raw::hello("idle");
    runtime().block_on(async {
        let channel = raw::connect(&one.address).await;
        let attach = async |given: &Given| {
            attach(channel.clone(), &given.authorization, hello.clone()).await
        };
        let _slot = attach(&one).await.expect("let in");
        let status = refused(attach(&other).await);
        assert_eq!(reason(&status), "INVALID_HELLO");
        assert!(status.message().contains("another process"), "{status:?}");

        // When nothing is left of the first one, the id is free.
        signal(pids(&view)[0], Signal::SIGKILL);
        harness.wait_for_pool("idle", "the first to go", |pool| {
            !pids(pool).contains(&pids(&view)[0])
        });
        let _slot = attach(&other).await.expect("let in");
    });
}
