//! What a configuration file may say, and what each mistake is told.

use std::time::Duration;

use super::*;
use crate::pool::Dialect;

#[test]
fn nothing_is_the_defaults() {
    let config = Config::parse("").expect("valid");
    assert_eq!(config.listen, [DEFAULT_ADDRESS]);
    assert_eq!(
        config.limits.payload_bytes.as_u64(),
        4 * 1024 * 1024 - 64 * 1024
    );
}

#[test]
fn durations_and_sizes_have_units() {
    let text = "[limits]\nhello_timeout = \"250ms\"\nentry_bytes = \"2KiB\"\n";
    let limits = Config::parse(text).expect("valid").limits;
    assert_eq!(limits.hello_timeout, Duration::from_millis(250));
    assert_eq!(limits.entry_bytes.as_u64(), 2048);
}

#[test]
fn a_limit_out_of_its_range_is_told_with_its_line() {
    let told = |text: &str| Config::parse(text).expect_err("refused").to_string();
    assert_eq!(
        told("[limits]\n\nheartbeat_interval = \"0s\"\n"),
        "line 3: limits.heartbeat_interval: 0ns must be 10ms to 366 days"
    );
    for bad in [
        "agent_kept = \"18000000000000000000s\"",
        "connection_calls = 0",
        "max_timeout = \"1s\"",
        "payload_bytes = \"8 TiB\"",
    ] {
        assert!(
            told(&format!("[limits]\n{bad}")).starts_with("line "),
            "{bad}"
        );
    }
}

#[test]
fn an_unknown_key_is_told_with_its_line_and_the_near_one() {
    let told = |text: &str| Config::parse(text).expect_err("refused").to_string();
    assert_eq!(
        told("listen = []\n\n[limits]\nheartbeat_intervall = \"5s\"\n"),
        "line 4: unknown key \"limits.heartbeat_intervall\"; did you mean \
         \"heartbeat_interval\"?"
    );
    assert_eq!(
        told("zzz = 1"),
        "line 1: unknown key \"zzz\"; known are: data, insecure, limits, listen, pool"
    );
    assert!(
        told("\nlisten = 5").starts_with("line 2: "),
        "{}",
        told("\nlisten = 5")
    );
    assert!(told("\n\nlisten = [").starts_with("line 3: "));
    assert!(told("[limits]\nhello_timeout = \"5 parsecs\"").starts_with("line 2: "));
}

const POOL: &str = r#"
[[pool]]
agent = "summarize"
command = ["python3", "worker.py"]
"#;

#[test]
fn a_pool_needs_an_agent_and_a_command_and_the_rest_has_its_default() {
    let config = Config::parse(POOL).expect("valid");
    let [pool] = &config.pools[..] else {
        panic!("one pool");
    };
    assert_eq!(pool.agent, "summarize");
    assert_eq!(pool.command, ["python3", "worker.py"]);
    let expected = Pool {
        agent: pool.agent.clone(),
        command: pool.command.clone(),
        ..Pool::default()
    };
    assert_eq!(*pool, expected);
    let rules = pool.rules();
    assert_eq!((rules.size, rules.per_request), (1, false));
    assert_eq!(rules.stop.cancel_grace, Duration::from_millis(500));
    assert_eq!(rules.stop.term_grace, Duration::from_secs(2));
    assert_eq!(rules.restart.min_uptime, Duration::from_secs(5));
    assert_eq!(rules.restart.window, Duration::from_secs(60));
    let most = (rules.restart.max_failed_starts, rules.restart.max_crashes);
    assert_eq!(most, (5, 10));
}

#[test]
fn every_setting_of_a_pool_can_be_said() {
    let text = format!(
        r#"{POOL}
size = 4
dialect = "jsonl"
mode = "per-request"
address = "tcp"
cwd = "agents"
env = {{ MODEL = "x", ANYTHING = "y" }}
pass_env = ["API_KEY"]
ready_timeout = "10s"
max_requests = 100
max_age = "1h"
stop = {{ cancel_grace = "100ms", term_grace = "1s" }}
restart = {{ min_uptime = "1s", max_failed_starts = 0, max_crashes = 0, window = "10s" }}
limits = {{ memory = "1GiB", open_files = 256, processes = 64, cpu_time = "30s" }}
sandbox = {{ user = "nobody", read = ["/usr", "agents"], write = ["scratch"], network = false }}
launcher = ["podman", "run"]
"#
    );
    let pool = Config::parse(&text).expect("valid").pools.remove(0);
    assert_eq!(
        (pool.size, pool.dialect, pool.mode),
        (4, Dialect::Jsonl, Mode::PerRequest)
    );
    assert_eq!(pool.env["MODEL"], "x");
    assert_eq!(pool.stop.cancel_grace, Duration::from_millis(100));
    assert_eq!(pool.restart.max_failed_starts, 0);
    assert_eq!(pool.limits.memory, Some(bytesize::ByteSize::gib(1)));
    assert_eq!(pool.limits.cpu_time, Some(Duration::from_secs(30)));
    assert_eq!(pool.sandbox.user.as_deref(), Some("nobody"));
    assert!(!pool.sandbox.network);
    assert_eq!(pool.launcher, ["podman", "run"]);
}

#[test]
fn a_pool_without_network_dials_no_tcp_address() {
    let text = format!("{POOL}address = \"tcp\"\nsandbox = {{ network = false }}");
    let told = Config::parse(&text).expect_err("refused").to_string();
    let expected = "line 5: pool \"summarize\": address: without sandbox.network no TCP address is \
                    reached: leave address out";
    assert_eq!(told, expected);
}

#[test]
fn a_value_of_another_kind_is_told_with_what_to_write() {
    for (text, part) in [
        ("[pool]\nagent = \"a\"", "[[pool]]"),
        ("[[pool]]\ncommand = \"python3 w.py\"", "[\"python3\", "),
        ("[[pool]]\nready_timeout = 30", "\"30s\""),
        ("[[pool]]\nlimits = { memory = \"lots\" }", "\"64MiB\""),
        ("[limits]\npayload_bytes = \"lots\"", "\"64MiB\""),
    ] {
        let told = Config::parse(text).expect_err("refused").to_string();
        assert!(told.contains(part), "{text}: {told}");
    }
}

#[test]
fn each_mistake_in_a_pool_is_told_with_its_line() {
    let told = |text: &str| {
        let text = format!("{POOL}{text}");
        Config::parse(&text).expect_err("refused").to_string()
    };
    for (text, expected) in [
        (
            "\nsizes = 4",
            "line 6: unknown key \"pool.sizes\"; did you mean \"size\"?",
        ),
        (
            "stop = { cancel_grase = \"1s\" }",
            "line 5: unknown key \"pool.stop.cancel_grase\"; did you mean \"cancel_grace\"?",
        ),
        (
            "sandbox = { reads = [] }",
            "line 5: unknown key \"pool.sandbox.reads\"; did you mean \"read\"?",
        ),
        (
            "size = 2000",
            "line 5: pool \"summarize\": size: 2000 must be 0 to 1000",
        ),
        (
            "\n[pool.restart]\nmax_crashes = 5000",
            "line 7: pool \"summarize\": restart.max_crashes: 5000 must be 0 (no limit) to 1000",
        ),
        (
            "limits = { cpu_time = \"5s\" }",
            "line 5: pool \"summarize\": limits.cpu_time: it is only for mode = \"per-request\": a \
             process that is used again would be killed in the middle of a request",
        ),
        (
            "env = { HARNESS_TOKEN = \"x\" }",
            "line 5: pool \"summarize\": env: HARNESS_TOKEN: names that start with HARNESS_ are \
             the harness's",
        ),
        (
            "[[pool]]\nagent = \"summarize\"\ncommand = [\"x\"]",
            "line 6: pool \"summarize\": agent: another pool has this agent: give one pool a \
             larger size",
        ),
    ] {
        assert_eq!(told(text), expected);
    }
    for (text, part) in [
        ("dialect = \"json\"", "line 5: "),
        ("mode = \"once\"", "line 5: "),
        (
            "ready_timeout = \"0s\"",
            "line 5: pool \"summarize\": ready_timeout",
        ),
        (
            "[[pool]]\nagent = \"Bad\"\ncommand = [\"x\"]",
            "line 6: pool \"Bad\": agent",
        ),
        ("[[pool]]\nagent = \"two\"", "line 5: pool \"two\": command"),
        (
            "[[pool]]\nagent = \"two\"\ncommand = [\"\"]",
            "line 7: pool \"two\": command",
        ),
        (
            "limits = { open_files = 0 }",
            "line 5: pool \"summarize\": limits.open_files",
        ),
        (
            "pass_env = [\"A=B\"]",
            "line 5: pool \"summarize\": pass_env",
        ),
    ] {
        assert!(told(text).starts_with(part), "{}", told(text));
    }
}

#[test]
fn relative_paths_of_a_file_are_those_of_its_folder() {
    let folder = std::env::temp_dir().join(format!("harness-config-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("harness.toml");
    let text = format!("{POOL}cwd = \"agents\"\nsandbox = {{ read = [\"/usr\", \"agents\"] }}");
    std::fs::write(&path, text).expect("a file");
    let pool = Config::read(&path).expect("valid").pools.remove(0);
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_eq!(pool.cwd, Some(folder.join("agents")));
    assert_eq!(
        pool.sandbox.read,
        Some(vec!["/usr".into(), folder.join("agents")])
    );
}

#[test]
fn only_what_a_process_is_made_of_makes_another_make() {
    let pool = Config::parse(POOL).expect("valid").pools.remove(0);
    let other = |change: fn(&mut Pool)| {
        let mut other = pool.clone();
        change(&mut other);
        pool.same_make(&other)
    };
    assert!(other(|pool| pool.size = 9));
    assert!(other(|pool| pool.max_requests = 9));
    assert!(other(|pool| pool.stop.term_grace = Duration::ZERO));
    assert!(!other(|pool| pool.command.push("-v".into())));
    assert!(!other(|pool| drop(pool.env.insert("A".into(), "B".into()))));
    assert!(!other(|pool| pool.limits.open_files = Some(9)));
}
