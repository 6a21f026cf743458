//! The command that is run: its program is found before anything is started, and its files give
//! the agent a name.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cli::error::CliError;

/// The longest name an agent may have.
const NAME_MAX: usize = 63;

/// A name for an agent, and what it was made of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) agent: String,
    pub(super) after: String,
}

/// Sees that there is such a program.
///
/// # Errors
/// That there is none.
pub(super) fn find(command: &[String]) -> Result<(), CliError> {
    let program = command.first().map_or("", String::as_str);
    let wrong = |why: &str| Err(CliError::Usage(format!("cannot run \"{program}\": {why}")));
    if program.contains('/') {
        return match Path::new(program).metadata() {
            Ok(_) if is_program(Path::new(program)) => Ok(()),
            Ok(_) => wrong("it is no program: chmod +x it, or name its interpreter first"),
            Err(error) => wrong(&error.to_string()),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|folder| is_program(&folder.join(program)));
    match found {
        true => Ok(()),
        false if Path::new(program).is_file() => {
            wrong("it is in no folder of PATH; one of this folder is called with ./ before it")
        }
        false => wrong("it is in no folder of PATH"),
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The files that the command names.
pub(super) fn files(command: &[String]) -> Vec<PathBuf> {
    let is_looked_up = |at: usize, word: &str| at == 0 && !word.contains('/');
    let named = command.iter().enumerate();
    named
        .filter(|(at, word)| !is_looked_up(*at, word))
        .map(|(_, word)| PathBuf::from(word))
        .filter(|path| path.is_file())
        .collect()
}

/// The agent's name when nobody says one: after a program of one's own, else the first file that
/// is named, else the folder.
pub(super) fn agent(command: &[String], folder: &Path) -> Named {
    let program = command.first().map(Path::new);
    let own = program.filter(|path| path.is_relative() && path.components().count() > 1);
    let mut arguments = command.iter().skip(1).map(Path::new);
    let file = own.or_else(|| arguments.find(|path| path.is_file()));
    let (stem, after) = match file {
        Some(file) => (file.file_stem(), file.display().to_string()),
        None => (folder.file_name(), "this folder".to_owned()),
    };
    let agent = valid(&stem.unwrap_or_default().to_string_lossy());
    Named { agent, after }
}

/// The nearest name that an agent may have.
fn valid(name: &str) -> String {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let plain = name
        .to_lowercase()
        .replace(|c: char| !is_inner(c) && !matches!(c, '.' | '_' | '-'), "-");
    let start = plain.trim_start_matches(|c| !is_inner(c));
    let cut = start.get(..NAME_MAX).unwrap_or(start);
    match cut.trim_end_matches(|c| !is_inner(c)) {
        "" => "agent".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use harness_server::ids::is_valid_name;

    use super::*;

    #[test]
    fn any_name_becomes_one_an_agent_may_have() {
        let long = "x".repeat(100);
        for (name, expected) in [
            ("worker", "worker"),
            ("My Agent", "my-agent"),
            ("_draft_v2.", "draft_v2"),
            ("Übersetzer", "bersetzer"),
            ("日本", "agent"),
            ("", "agent"),
            (long.as_str(), &long[..NAME_MAX]),
        ] {
            assert_eq!(valid(name), expected);
            assert!(is_valid_name(&valid(name)), "{name}");
        }
    }

    #[test]
    fn the_agent_is_named_after_the_file_that_is_run_or_the_folder() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let script = folder.path().join("count words.py");
        std::fs::write(&script, "").expect("written");
        let script = script.display().to_string();
        let named = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            agent(&command, Path::new("/home/me/Summarize It")).agent
        };
        assert_eq!(named(&["python3", &script]), "count-words");
        assert_eq!(named(&["python3", "-u", &script, "--fast"]), "count-words");
        assert_eq!(named(&["./target/debug/echo", &script]), "echo");
        assert_eq!(named(&["cargo", "run"]), "summarize-it");
        assert_eq!(named(&["/usr/bin/python3", "-m", "agents"]), "summarize-it");
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let told = |program: &str| match find(&[program.to_owned()]) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(told("sh"), "");
        assert_eq!(told("/bin/sh"), "");
        assert!(told("no-such-program").contains("in no folder of PATH"));
        assert!(told("./no/such").contains("No such file"));
        let plain = tempfile::NamedTempFile::new().expect("a file");
        let plain = plain.path().display().to_string();
        assert!(told(&plain).contains("no program"), "{plain}");
    }
}
