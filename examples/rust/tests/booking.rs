//! The walk-through of `booking`, as the README tells it: it dies in each of its tools and is
//! started again; it is killed while a person is asked.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Books with a person at the terminal, who has said nothing yet.
fn asking(folder: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_booking"));
    command.arg(folder).arg("--ask").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// Books with a person at the terminal who says this.
fn asked(folder: &Path, answer: &str) -> Output {
    let mut child = asking(folder);
    let mut stdin = child.stdin.take().expect("its input");
    // One that asks nobody may have ended before.
    let _ = stdin.write_all(answer.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_person_decides_once_whether_the_card_is_charged() {
    for (answer, said, charges) in [
        ("yes\n", "Booked: mailed the ticket to Rome.", 1),
        ("no\n", "The room is reserved, and not paid.", 0),
        ("", "The room is reserved, and not paid.", 0),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        // The second time nobody is asked, and another answer changes nothing.
        for (answer, questions) in [(answer, 1), ("yes\n", 0)] {
            let output = asked(folder.path(), answer);
            let stdout = String::from_utf8_lossy(&output.stdout);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(stdout.trim(), said, "{answer:?}: {output:?}");
            assert_eq!(stderr.matches("Charge the card").count(), questions);
        }
        let world = std::fs::read_to_string(folder.path().join("world.txt")).expect("a world");
        let charged = world.lines().filter(|line| line.starts_with("charge"));
        assert_eq!(charged.count(), charges, "{answer:?}: {world}");
    }
}

fn world(folder: &Path) -> Vec<String> {
    let world = std::fs::read_to_string(folder.join("world.txt")).expect("a world");
    world.lines().map(str::to_owned).collect()
}

#[test]
fn a_process_that_is_killed_while_a_person_is_asked_has_charged_nothing_and_the_next_asks_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut killed = asking(folder.path());
    let mut stderr = killed.stderr.take().expect("its errors");
    let mut question = String::new();
    // It is asked, and nobody answers.
    while !question.contains("Charge the card") {
        let mut byte = [0];
        assert_eq!(stderr.read(&mut byte).expect("it is read"), 1, "{question}");
        question.push(char::from(byte[0]));
    }
    killed.kill().expect("it is killed");
    assert!(!killed.wait().expect("it ended").success());
    let tools = |world: &[String]| {
        let tools = world.iter().map(|line| line.split(' ').next());
        let tools: Vec<String> = tools.flatten().map(str::to_owned).collect();
        tools
    };
    assert_eq!(tools(&world(folder.path())), ["look", "reserve"]);
    let resumed = asked(folder.path(), "yes\n");
    let said = String::from_utf8_lossy(&resumed.stdout);
    assert_eq!(said.trim(), "Booked: mailed the ticket to Rome.");
    assert!(String::from_utf8_lossy(&resumed.stderr).contains("Charge the card"));
    let world = world(folder.path());
    assert_eq!(tools(&world), ["look", "reserve", "charge", "mail"]);
}

#[test]
fn the_walk_through_of_the_readme_is_what_happens() {
    let readme = include_str!("../README.md");
    let folder = tempfile::tempdir().expect("a folder");
    let mut ran = 0;
    for line in readme.lines() {
        let Some(line) = line.strip_prefix("cargo run --bin booking -- trip-1") else {
            continue;
        };
        let (arguments, told) = line.split_once('#').expect("what happens");
        let mut command = Command::new(env!("CARGO_BIN_EXE_booking"));
        command
            .arg(folder.path())
            .args(arguments.split_whitespace());
        let output = command.output().expect("it starts");
        assert_eq!(output.status.success(), !told.contains("dies"), "{line}");
        ran += 1;
    }
    assert_eq!(ran, 2, "it dies, and goes on");
    assert!(readme.contains("# look, reserve and charge, once each"));
    let world = world(folder.path());
    let tools: Vec<&str> = world
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(tools, ["look", "reserve", "charge"]);
}

fn booking(folder: &Path, die_in: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_booking"));
    command.arg(folder);
    if let Some(tool) = die_in {
        command.args(["--die-in", tool]);
    }
    command.output().expect("it starts")
}

#[test]
fn each_class_is_taken_up_in_its_own_way_after_a_death_in_the_tool() {
    let booked = "Booked: mailed the ticket to Rome.";
    for (tool, answer, times) in [
        ("look", booked, 2),
        ("reserve", booked, 2),
        (
            "charge",
            "The room is reserved. Whether the card was charged I do not know.",
            1,
        ),
        ("mail", "Booked: found the mail about Rome.", 1),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let died = booking(folder.path(), Some(tool));
        assert!(!died.status.success(), "{tool}: {died:?}");
        // However often it is asked: what is recorded is not done again.
        for _ in 0..2 {
            let resumed = booking(folder.path(), None);
            let said = String::from_utf8_lossy(&resumed.stdout);
            assert_eq!(said.trim(), answer, "{tool}: {resumed:?}");
        }
        let world = std::fs::read_to_string(folder.path().join("world.txt")).expect("a world");
        let lines: Vec<&str> = world
            .lines()
            .filter(|line| line.starts_with(tool))
            .collect();
        assert_eq!(lines.len(), times, "{tool}: {world}");
        assert!(
            lines.iter().all(|line| *line == lines[0]),
            "one key: {world}"
        );
    }
}
