//! The walk-through of `booking`: it dies in each of its tools and is started again.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Books with a person at the terminal who says this.
fn asked(folder: &Path, answer: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_booking"));
    command.arg(folder).arg("--ask").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
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
