//! Pools of the gRPC dialect: the puppet of the SDK and its Python twins, started by the harness.

mod ending;
mod faults;
mod isolation;
mod killed;
mod operating;
mod serving;
mod tokens;
mod waited_for;

use std::process::Command;

use harness_tests::{Harness, program, python, source};
use serde_json::{Value, json};

use crate::ask;

/// Which worker a pool starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Make {
    /// That of the SDK.
    Rust,
    /// `examples/python/worker.py`.
    Minimal,
    /// `tests/python/full.py`.
    Full,
}

/// Those that are here: without Python the first alone.
fn makes() -> Vec<Make> {
    let all = [Make::Rust, Make::Minimal, Make::Full];
    all.into_iter()
        .filter(|make| make.command().is_some())
        .collect()
}

impl Make {
    fn command(self) -> Option<Command> {
        let level = match self {
            Self::Rust => return Some(Command::new(program("puppet"))),
            Self::Minimal => "minimal",
            Self::Full => "full",
        };
        let mut command = python(source("tests/python/puppet.py"))?;
        command.arg(level);
        Some(command)
    }

    /// A pool of the agent `puppet`, with more settings.
    fn pool(self, settings: &str) -> String {
        self.pool_of("puppet", &[], settings)
    }

    /// The same under another name, and with more environment.
    fn pool_of(self, agent: &str, env: &[(&str, &str)], settings: &str) -> String {
        let command = self.command().expect("a make that is here");
        pool_with(agent, &command, env, settings)
    }
}

/// A pool of any command.
fn pool_with(agent: &str, command: &Command, env: &[(&str, &str)], settings: &str) -> String {
    let text = |word: &std::ffi::OsStr| word.to_str().expect("UTF-8").to_owned();
    let mut words = vec![text(command.get_program())];
    words.extend(command.get_args().map(text));
    let own = command.get_envs().filter_map(|(name, value)| {
        let (name, value) = (text(name), text(value?));
        Some(format!("{name} = {}", json!(value)))
    });
    let more = env
        .iter()
        .map(|(name, value)| format!("{name} = {}", json!(value)));
    let env: Vec<String> = own.chain(more).collect();
    format!(
        "[[pool]]\nagent = \"{agent}\"\ncommand = {}\nenv = {{ {} }}\n{settings}\n",
        json!(words),
        env.join(", ")
    )
}

/// A pool of a script of `sh`.
fn sh(agent: &str, script: &str, settings: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    pool_with(agent, &command, &[], settings)
}

/// Asks the puppet for a reply and gives it.
#[track_caller]
fn reply(harness: &Harness, order: &Value) -> Value {
    crate::reply(harness, "puppet", order)
}

/// Asks the puppet for an error of this code and gives it.
#[track_caller]
fn fails(harness: &Harness, order: &Value, code: &str, options: &[&str]) -> Value {
    let told = ask(harness, "puppet", order, options);
    assert_eq!(told["error"]["code"], code, "{told}");
    told["error"].clone()
}

/// The process id of the only process of the puppet's pool.
#[track_caller]
fn pid(harness: &Harness) -> u64 {
    crate::pids(&harness.pool("puppet"))[0]
}

fn answers(value: &str) -> Value {
    json!({"do": "reply", "value": value})
}
