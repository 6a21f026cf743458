//! The table of faults in tests/README.md against the tests: each named one exists and runs with the
//! workers that the table gives it, and no fault that is asked for is without one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The faults that are survived so far.
const ASKED: [&str; 25] = [
    "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17",
    "18", "19", "20", "21", "22", "23b", "23c", "24",
];
/// Those that are asked of every full level worker.
const FULL_LEVEL: [&str; 4] = ["12", "13", "16", "23c"];

struct Row {
    fault: String,
    test: String,
    workers: String,
}

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rows() -> Vec<Row> {
    let readme = text("README.md");
    let section = readme.split("\n## Faults\n").nth(1).expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter_map(|line| line.strip_prefix("| "));
    lines
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim);
            let fault = cells.next()?.to_owned();
            let test = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
            Some(Row {
                fault,
                test: test.to_owned(),
                workers: cells.next()?.to_owned(),
            })
        })
        .collect()
}

/// How a file's tests are run: the macro they are listed under, or none for a test of its own.
fn tests_of(source: &str) -> BTreeMap<String, Option<&'static str>> {
    let mut found = BTreeMap::new();
    for (opening, workers) in [
        ("with_each_worker! {", "all"),
        ("with_full_level_workers! {", "full level"),
    ] {
        for list in source.split(opening).skip(1) {
            let list = list.split('}').next().unwrap_or_default();
            for name in list
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
            {
                found.insert(name.to_owned(), Some(workers));
            }
        }
    }
    let lines: Vec<&str> = source.lines().collect();
    for pair in lines.windows(2) {
        let is_test = pair[0].starts_with("#[test]") || pair[0].starts_with("#[tokio::test");
        let name = pair[1].trim_start_matches("async ").strip_prefix("fn ");
        if let (true, Some(name)) = (is_test, name) {
            let name = name.split('(').next().unwrap_or_default();
            found.insert(name.to_owned(), None);
        }
    }
    found
}

#[test]
fn each_test_of_the_table_exists_and_runs_with_its_workers() {
    let rows = rows();
    assert!(rows.len() > 50, "the table was found");
    for row in rows {
        let (file, name) = row.test.rsplit_once("::").expect("file::test");
        let source = text(&format!("tests/{}.rs", file.replace("::", "/")));
        let tests = tests_of(&source);
        let run = tests
            .get(name)
            .unwrap_or_else(|| panic!("there is no test {}", row.test));
        let own = ["Rust", "minimal", "full", "bare", "pool", "-"];
        match run {
            Some(workers) => assert_eq!(row.workers, *workers, "{}", row.test),
            None => assert!(
                own.contains(&&*row.workers),
                "{}: {}",
                row.test,
                row.workers
            ),
        }
    }
}

#[test]
fn no_fault_that_is_asked_for_is_without_a_test() {
    let rows = rows();
    for fault in ASKED {
        assert!(rows.iter().any(|row| row.fault == fault), "fault {fault}");
    }
    for fault in FULL_LEVEL {
        let by_both =
            |row: &Row| row.fault == fault && ["all", "full level"].contains(&&*row.workers);
        assert!(rows.iter().any(by_both), "fault {fault}, full level");
    }
}
