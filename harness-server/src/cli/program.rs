//! How this program was called, for lines that a person copies.

use std::env;
use std::path::Path;

use harness_server::config::DEFAULT_ADDRESS;

/// The program as it can be called from where the person is: `harness` when the shell found it,
/// else its path, relative when it lies below the current folder.
pub(super) fn called_as() -> String {
    let called = env::args_os().next().unwrap_or_else(|| "harness".into());
    let path = Path::new(&called);
    let below = env::current_dir()
        .ok()
        .and_then(|folder| path.strip_prefix(folder).ok());
    // A relative path of one component would be looked up by the shell.
    let shown = below
        .filter(|path| path.components().count() > 1)
        .unwrap_or(path);
    quoted(&shown.to_string_lossy())
}

/// What the commands need to speak to the harness at `address`; nothing when they do anyway.
pub(super) fn server_flag(address: &str) -> String {
    let elsewhere = env::var("HARNESS_ADDRESS").is_ok_and(|other| !other.is_empty());
    if address == DEFAULT_ADDRESS && !elsewhere {
        String::new()
    } else {
        format!(" --server {}", quoted(address))
    }
}

/// A word as a POSIX shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_only_when_it_must_be() {
        assert_eq!(quoted("target/debug/harness"), "target/debug/harness");
        assert_eq!(quoted("my folder/harness"), "'my folder/harness'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
