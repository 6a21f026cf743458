//! Both modes, what a process is started with, and how long it serves.

use harness_proto::v1::ErrorCode;
use harness_tests::{BOUND, Harness, raw};
use serde_json::json;

use super::{
    ask, assert_nothing_counted, error, lives, pids, pool, pool_of, reply, start, wait_until_gone,
};

#[test]
fn a_pool_answers_and_its_processes_are_used_again() {
    let harness = start(&pool(""), &["jsonl"]);
    let first = reply(&harness, "jsonl", &json!({"do": "pid"}));
    for _ in 0..5 {
        assert_eq!(reply(&harness, "jsonl", &json!({"do": "pid"})), first);
    }
    let view = harness.pool("jsonl");
    assert_eq!(view["processes"][0]["answered"], 6, "{view}");
    assert_eq!(view["processes"][0]["pid"], first);
    let workers = harness.workers("jsonl");
    assert_eq!(workers[0]["pid"], first, "{workers}");
    assert_eq!(workers[0]["heartbeats"], false);
}

#[test]
fn any_json_goes_in_and_comes_out_as_it_was() {
    let harness = start(&pool(""), &["jsonl"]);
    for text in [
        "\"hello\"",
        "null",
        "1.50",
        "[1, 2]",
        "{\"b\": 1,\n \"a\": [\"ü\\n\"]}",
    ] {
        let asked = harness.cli(["ask", "jsonl", text, "--json"]);
        let given: serde_json::Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(asked.json()["reply"], given, "{asked}");
    }
}

#[test]
fn another_media_type_is_refused_and_the_process_goes_on() {
    let harness = start(&pool(""), &["jsonl"]);
    let before = pids(&harness.pool("jsonl"));
    let mut request = raw::ask("jsonl", "hello", BOUND);
    let payload = request.payload.as_mut().expect("a payload");
    payload.content_type = "text/plain".to_owned();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let refused = runtime.block_on(async {
        let channel = raw::connect(harness.address()).await;
        raw::runs(&channel).ask(request).await.expect_err("refused")
    });
    let code = ErrorCode::InvalidRequest;
    let told = raw::typed(&refused, tonic::Code::InvalidArgument, code);
    for part in ["application/json", "text/plain"] {
        assert!(told.message.contains(part), "{}", told.message);
    }
    assert_eq!(reply(&harness, "jsonl", &json!(1)), 1);
    assert_eq!(pids(&harness.pool("jsonl")), before);
}

#[test]
fn the_agents_error_is_an_agent_error_that_is_not_tried_again() {
    let harness = start(&pool(""), &["jsonl"]);
    let before = pids(&harness.pool("jsonl"));
    let order = json!({"do": "fail", "message": "out of ideas"});
    let told = error(&harness, &order, "AGENT_ERROR", &["--attempts", "3"]);
    assert_eq!(told["message"], "out of ideas");
    assert_eq!(
        (&told["retryable"], &told["attempt"]),
        (&json!(false), &json!(1))
    );
    assert_eq!(pids(&harness.pool("jsonl")), before);
}

#[test]
fn in_per_request_mode_each_request_has_a_process_of_its_own_whose_input_ends() {
    // The worker reads on after its reply and ends with its input.
    let harness = start(&pool("mode = \"per-request\"\nsize = 2"), &["jsonl"]);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let pid = reply(&harness, "jsonl", &json!({"do": "pid"}));
        let pid = pid.as_u64().expect("a pid");
        assert!(!seen.contains(&pid), "{pid} answered twice");
        seen.push(pid);
    }
    for pid in seen {
        wait_until_gone(pid);
    }
    let view = harness.wait_for_full("jsonl");
    assert_nothing_counted(&view);
    assert_eq!(view["last_exit"], "exit code 0");
}

#[test]
fn a_worker_that_answers_once_serves_in_reuse_mode_too_however_many_ask() {
    let harness = start(&pool_of("once", &["--once"], "size = 2"), &["once"]);
    let folder = harness.folder().join("asks.jsonl");
    let asks: String = (0..40).map(|number| format!("{number}\n")).collect();
    std::fs::write(&folder, asks).expect("written");
    let asks = std::fs::read(&folder).expect("read");
    let command = harness.command(["ask", "once", "--many"]);
    let asked =
        harness_tests::Process::start_with_input("harness ask --many", command, &asks).finish();
    assert_eq!(asked.code, Some(0), "{asked}");
    assert_eq!(asked.stdout.lines().count(), 40, "{asked}");
    let view = harness.wait_for_full("once");
    assert_nothing_counted(&view);
}

#[test]
fn a_process_gets_its_own_environment_and_folder_and_nothing_else_of_the_harnesss() {
    let settings = "cwd = \"sub\"\nenv = { MODEL = \"x\", LANG = \"C\" }\npass_env = [\"API_KEY\"]";
    let harness = Harness::builder()
        .config(pool(""))
        .env("API_KEY", "secret of the agent")
        .env("OTHER_KEY", "secret of another")
        .start();
    let folder = harness.folder().to_owned();
    std::fs::create_dir(folder.join("sub")).expect("a folder");
    harness.reload(&pool(settings));
    let cwd = folder.join("sub").display().to_string();
    harness_tests::eventually("the new processes", BOUND, || {
        (reply(&harness, "jsonl", &json!({"do": "cwd"})) == cwd.as_str()).then_some(())
    });
    let env = reply(&harness, "jsonl", &json!({"do": "env"}));
    assert_eq!(env["MODEL"], "x");
    assert_eq!(env["LANG"], "C");
    assert_eq!(env["API_KEY"], "secret of the agent");
    let allowed = ["MODEL", "LANG", "API_KEY", "PATH", "HOME", "TZ"];
    let variables = env.as_object().expect("variables");
    let others: Vec<&String> = variables
        .keys()
        .filter(|name| !allowed.contains(&name.as_str()))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_process_is_kept_to_the_limits_and_files_of_its_pool() {
    let binary = harness_tests::program("jsonl");
    let programs = binary.parent().expect("a folder").display().to_string();
    let read = json!([
        programs,
        "/lib",
        "/lib64",
        "/usr",
        "/proc",
        "/etc/ld.so.cache"
    ]);
    let read: Vec<&str> = read
        .as_array()
        .expect("paths")
        .iter()
        .filter_map(serde_json::Value::as_str)
        .filter(|path| std::path::Path::new(path).exists())
        .collect();
    let settings = format!(
        "limits = {{ open_files = 77 }}\nsandbox = {{ read = {} }}",
        json!(read)
    );
    let harness = start(&pool(&settings), &["jsonl"]);
    let limits = reply(
        &harness,
        "jsonl",
        &json!({"do": "read", "path": "/proc/self/limits"}),
    );
    let limits = limits.as_str().expect("a text");
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    assert!(files.is_some_and(|line| line.contains(" 77 ")), "{limits}");

    let secret = harness.folder().join("harness.toml").display().to_string();
    let order = json!({"do": "read", "path": secret});
    let told = error(&harness, &order, "AGENT_ERROR", &[]);
    super::assert_says(&told, &["denied"]);
}

#[test]
fn a_process_is_replaced_after_max_requests_and_nobody_waits_for_it() {
    let harness = start(&pool("max_requests = 3"), &["jsonl"]);
    let first = pids(&harness.pool("jsonl"))[0];
    let mut asked = 0;
    harness_tests::eventually("another process answers", BOUND, || {
        asked += 1;
        let pid = reply(&harness, "jsonl", &json!({"do": "pid"}));
        (pid != first).then_some(())
    });
    assert!(asked > 3, "it answers three, not {asked}");
    wait_until_gone(first);
    let view = harness.pool("jsonl");
    assert_nothing_counted(&view);
}

#[test]
fn a_process_is_replaced_when_it_is_too_old() {
    let harness = start(&pool("max_age = \"300ms\"\nsize = 2"), &["jsonl"]);
    for pid in pids(&harness.pool("jsonl")) {
        wait_until_gone(pid);
    }
    assert_eq!(reply(&harness, "jsonl", &json!(1)), 1);
}

#[test]
fn an_idle_harness_that_leaves_leaves_no_process() {
    let harness = start(&pool("size = 3"), &["jsonl"]);
    let pids = pids(&harness.pool("jsonl"));
    let left = harness.stop();
    assert_eq!(left.code, Some(0), "{left}");
    for pid in pids {
        assert!(!lives(pid), "{pid} is left");
    }
}

#[test]
fn a_leaving_harness_finishes_what_is_in_work_within_its_grace_and_kills_the_rest() {
    let grace = "[limits]\nshutdown_grace = \"1s\"\n";
    let config = format!("{grace}{}", pool("size = 2"));
    let harness = start(&config, &["jsonl"]);
    let asker = harness_tests::Asker::new(&harness, "jsonl");
    let short = asker.start(&json!({"do": "wait", "ms": 300}), BOUND);
    let long = asker.start(&json!({"do": "hang"}), BOUND);
    harness.wait_for_busy("jsonl", 2);
    let pids = pids(&harness.pool("jsonl"));
    let left = harness.stop();
    assert_eq!(left.code, Some(0), "{left}");
    assert_eq!(short.answer().json(), json!(null));
    long.answer()
        .error(tonic::Code::Unavailable, ErrorCode::ShuttingDown);
    for pid in pids {
        assert!(!lives(pid), "{pid} is left");
    }
}

#[test]
fn a_full_pool_is_busy_or_waits_as_any_agent_does() {
    let harness = start(&pool(""), &["jsonl"]);
    let asker = harness_tests::Asker::new(&harness, "jsonl");
    let hangs = asker.start(&json!({"do": "wait", "ms": 400}), BOUND);
    harness.wait_for_busy("jsonl", 1);
    let told = ask(&harness, "jsonl", &json!(7), &["--timeout", "100ms"]);
    assert_eq!(told["error"]["code"], "DEADLINE_EXCEEDED", "{told}");
    super::assert_says(&told["error"], &["its only slot is busy"]);
    assert_eq!(reply(&harness, "jsonl", &json!(7)), 7);
    assert_eq!(hangs.answer().json(), json!(null));
}
