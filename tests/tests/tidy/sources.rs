//! What can be checked about the code without running it: import direction, file length, module
//! docs, where generated types and statuses may stand, and that tables in prose equal the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use harness_server::api::{grpc_code, retry_rule};
use harness_server::envelope::Code;

/// A file longer than this holds a second thing.
const LINES_MAX: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust file of the workspace that a person writes, as a path from the root and its text.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["proto", "harness-server", "worker-sdk", "examples", "tests"] {
        collect(&root().join(folder), &mut found);
    }
    assert!(found.len() > 50, "the sources were found");
    found
}

fn collect(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            if !matches!(name, "target" | "gen" | ".venv" | "node_modules") {
                collect(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a readable file");
            let relative = path.strip_prefix(root()).expect("a path under the root");
            found.push((relative.display().to_string(), text));
        }
    }
}

#[test]
fn every_file_says_first_what_it_owns() {
    for (path, text) in sources() {
        assert!(
            text.starts_with("//! "),
            "{path} must open with a module comment"
        );
    }
}

#[test]
fn no_file_is_longer_than_one_thing() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        // One table of every state and event is one thing.
        let is_table = path.ends_with("session/tests.rs");
        assert!(
            lines <= LINES_MAX || is_table,
            "{path} has {lines} lines: what is the second thing?"
        );
    }
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    for (path, _) in sources() {
        let name = path.rsplit('/').next().unwrap_or_default();
        assert!(
            !matches!(
                name,
                "mod.rs" | "utils.rs" | "util.rs" | "common.rs" | "helpers.rs"
            ),
            "{path}"
        );
    }
}

#[test]
fn imports_go_up_the_reading_order() {
    let lib = fs::read_to_string(root().join("harness-server/src/lib.rs")).expect("lib.rs");
    let order: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    assert!(order.len() >= 10, "{order:?}");
    for (path, text) in sources() {
        let Some(inner) = path.strip_prefix("harness-server/src/") else {
            continue;
        };
        let module = inner.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = order.iter().position(|name| *name == module) else {
            continue;
        };
        for used in used_modules(&text) {
            if let Some(place) = order.iter().position(|name| *name == used) {
                assert!(
                    place <= own,
                    "{path} imports `{used}`, which stands below it in lib.rs"
                );
            }
        }
    }
}

/// The modules a file of the crate names after `crate::`, its tests apart.
fn used_modules(text: &str) -> BTreeSet<String> {
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let mut used = BTreeSet::new();
    for part in code.split("crate::").skip(1) {
        let names = match part.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap_or_default().to_owned(),
            None => part
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or_default()
                .to_owned(),
        };
        used.extend(
            names
                .split(',')
                .map(|name| name.trim().split(':').next().unwrap_or_default().to_owned()),
        );
    }
    used
}

#[test]
fn the_pure_files_know_no_runtime_no_wire_and_no_clock() {
    for (path, text) in sources() {
        let inner = path.strip_prefix("harness-server/src/").unwrap_or_default();
        let pure = ["slot", "run", "pool", "dispatch", "ids", "envelope"]
            .iter()
            .any(|module| inner.split(['/', '.', '_']).next() == Some(module));
        if !pure || path.contains("tests") {
            continue;
        }
        for forbidden in [
            "tokio",
            "tonic",
            "prost",
            "Instant::now",
            "SystemTime",
            "std::fs",
        ] {
            assert!(
                !text.contains(forbidden),
                "{path} is pure and must not know {forbidden}"
            );
        }
    }
}

#[test]
fn the_pure_parts_of_the_agent_loop_know_no_runtime_no_http_and_no_clock() {
    let mut looked_at = 0;
    for (path, text) in sources() {
        let Some(inner) = path.strip_prefix("worker-sdk/src/agent_loop/") else {
            continue;
        };
        let parts: Vec<&str> = inner.split(['/', '.']).collect();
        let whole = [
            "arguments",
            "budget",
            "decoding",
            "failure",
            "machine",
            "message",
            "pairs",
            "record",
            "redact",
            "request",
            "response",
            "sse",
            "toolbox",
        ];
        let of_provider = ["encode", "decode", "stream", "strict"];
        let pure = whole.contains(&parts[0]) || of_provider.contains(&parts[1]);
        if !pure || parts.contains(&"tests") {
            continue;
        }
        looked_at += 1;
        let code = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        for forbidden in [
            "tokio",
            "reqwest",
            "tracing",
            "crate::context",
            "Instant::now",
            "async ",
        ] {
            assert!(
                !code.contains(forbidden),
                "{path} is pure and must not know {forbidden}"
            );
        }
    }
    assert!(looked_at > 20, "the files were found: {looked_at}");
}

#[test]
fn the_wall_clock_is_read_in_one_place_and_only_for_stamps() {
    let reading: Vec<String> = sources()
        .into_iter()
        .filter(|(path, _)| {
            ["harness-server/src/", "worker-sdk/src/"]
                .iter()
                .any(|folder| path.starts_with(folder))
        })
        .flat_map(|(path, text)| {
            let times = text.matches("SystemTime::now(").count();
            std::iter::repeat_n(path, times)
        })
        .collect();
    // Once, at the start; stamps are counted from it by the monotonic clock.
    assert_eq!(reading, ["harness-server/src/engine.rs"]);
}

#[test]
fn generated_types_stand_only_where_they_may() {
    for (path, text) in sources() {
        // A text, and no type.
        let text = text.replace("harness_proto::JOURNAL_SQL", "");
        let server = path.starts_with("harness-server/src/");
        let allowed = path.starts_with("harness-server/src/api/");
        assert!(
            !server || allowed || !text.contains("harness_proto"),
            "{path} names generated types"
        );
        let sdk = path.starts_with("worker-sdk/src/");
        let allowed = ["wire", "client", "connect", "worker/call"]
            .iter()
            .any(|part| path.starts_with(&format!("worker-sdk/src/{part}")));
        assert!(
            !sdk || allowed || !text.contains("harness_proto"),
            "{path} names generated types"
        );
    }
}

#[test]
fn statuses_are_made_in_one_file() {
    for (path, text) in sources() {
        if !path.starts_with("harness-server/src/") || path == "harness-server/src/api/status.rs" {
            continue;
        }
        for made in [
            "Status::new(",
            "Status::with_",
            "Status::internal(",
            "Status::cancelled(",
        ] {
            assert!(
                !text.contains(made),
                "{path} makes a tonic::Status ({made})"
            );
        }
    }
}

#[test]
fn one_module_a_crate_names_the_unmaintained_back_off_crate() {
    for crate_folder in ["harness-server/src/", "worker-sdk/src/"] {
        let naming: Vec<String> = sources()
            .into_iter()
            .filter(|(path, text)| path.starts_with(crate_folder) && text.contains("backoff::"))
            .filter(|(_, text)| text.contains("use backoff::") || text.contains(" backoff::"))
            .map(|(path, _)| path)
            .collect();
        assert!(naming.len() <= 1, "{naming:?}");
    }
}

#[test]
fn every_rpc_is_exercised() {
    let tests: String = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with("tests/"))
        .map(|(_, text)| text)
        .collect();
    for file in ["worker_service", "run_service", "admin_service"] {
        let proto = fs::read_to_string(root().join(format!("proto/harness/v1/{file}.proto")))
            .expect("the proto file");
        let rpcs: Vec<&str> = proto
            .lines()
            .filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next())
            .collect();
        assert!(!rpcs.is_empty());
        for rpc in rpcs {
            let call = format!(".{}(", snake_case(rpc));
            assert!(tests.contains(&call), "no test calls {rpc}");
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

#[test]
fn the_error_table_of_the_protocol_equals_the_code() {
    let readme = fs::read_to_string(root().join("proto/README.md")).expect("the protocol's text");
    let section = readme
        .split("\n## 6. Errors")
        .nth(1)
        .expect("the section on errors");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<[String; 3]> = section
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let code = cells.next()?.trim_end_matches('`').to_owned();
            Some([code, cells.next()?.to_owned(), cells.next()?.to_owned()])
        })
        .collect();
    let expected: Vec<[String; 3]> = Code::ALL
        .iter()
        .map(|code| {
            let name = screaming(&format!("{code:?}"));
            let status = screaming(&format!("{:?}", grpc_code(*code)));
            [name, status, retry_rule(*code).to_owned()]
        })
        .collect();
    assert_eq!(rows, expected);
}

fn screaming(name: &str) -> String {
    snake_case(name).to_uppercase()
}
