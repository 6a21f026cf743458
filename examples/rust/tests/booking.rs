//! The walk-through of `booking`: it dies in each of its tools and is started again.

use std::path::Path;
use std::process::{Command, Output};

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
