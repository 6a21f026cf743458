//! A worker of the JSON Lines dialect that does what the message of its request says, and breaks
//! every rule there is. It ends when its standard input does, and with `--once` after one request.

use std::io::{self, BufRead, Write};
use std::process::{Command, exit};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Request {
    id: String,
    message: Value,
}

/// A message such as `{"do": "crash", "code": 3}`; any other is given back.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// Replies with its process id.
    Pid,
    /// Replies with its environment.
    Env,
    /// Replies with its working folder.
    Cwd,
    /// Replies with the text of a file, or answers why it cannot be read.
    Read { path: String },
    /// Answers with an error.
    Fail { message: String },
    /// Replies null after a while.
    Wait { ms: u64 },
    /// Never answers.
    Hang,
    /// Starts a process that sleeps for this number of seconds, in a session of its own if asked
    /// to, and never answers.
    HangWithChild { seconds: String, setsid: bool },
    /// Says why on standard error and exits without a reply.
    Crash { code: i32 },
    /// Kills itself.
    Kill,
    /// Dies in the middle of its reply.
    HalfReply,
    /// Writes this line instead of a reply, and goes on.
    Write { line: String },
    /// Writes this line before its reply.
    Before { line: String },
    /// Writes this line after its reply, with it.
    After { line: String },
    /// Replies, then writes a line a while later.
    Later { ms: u64 },
    /// Replies, then exits after a while.
    ExitAfter { code: i32, ms: u64 },
    /// Replies with another id.
    OtherId,
    /// Writes a line without an end.
    Endless,
    /// Closes its standard output and goes on.
    Close,
    /// Replies with a string of so many bytes, its quotes included.
    Fill { bytes: usize },
}

fn main() {
    let once = std::env::args().any(|argument| argument == "--once");
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let request: Request = serde_json::from_str(&line).expect("the harness writes requests");
        work(&request);
        if once {
            return;
        }
    }
}

fn work(request: &Request) {
    let reply = |value: Value| json!({"id": request.id, "ok": true, "value": value}).to_string();
    let failure = |why: String| json!({"id": request.id, "ok": false, "error": why}).to_string();
    let order = match serde_json::from_value(request.message.clone()) {
        Ok(order) => order,
        Err(_) => return write(&reply(request.message.clone())),
    };
    match order {
        Order::Pid => write(&reply(std::process::id().into())),
        Order::Env => {
            let variables: serde_json::Map<String, Value> = std::env::vars()
                .map(|(name, value)| (name, value.into()))
                .collect();
            write(&reply(variables.into()));
        }
        Order::Cwd => {
            let folder = std::env::current_dir().expect("a working folder");
            write(&reply(folder.display().to_string().into()));
        }
        Order::Read { path } => match std::fs::read_to_string(path) {
            Ok(text) => write(&reply(text.into())),
            Err(error) => write(&failure(error.to_string())),
        },
        Order::Fail { message } => write(&failure(message)),
        Order::Wait { ms } => {
            sleep(Duration::from_millis(ms));
            write(&reply(Value::Null));
        }
        Order::Hang => hang(),
        Order::HangWithChild { seconds, setsid } => {
            let mut command = Command::new(if setsid { "setsid" } else { "sleep" });
            if setsid {
                command.arg("sleep");
            }
            command.arg(seconds).status().expect("sleep must start");
            hang();
        }
        Order::Crash { code } => {
            say("about to crash");
            exit(code);
        }
        Order::Kill => {
            let me = std::process::id().to_string();
            let _ = Command::new("kill").args(["-KILL", &me]).status();
            hang();
        }
        Order::HalfReply => {
            put(&reply(Value::Null)[..20]);
            exit(4);
        }
        Order::Write { line } => write(&line),
        Order::Before { line } => write(&format!("{line}\n{}", reply(Value::Null))),
        Order::After { line } => write(&format!("{}\n{line}", reply(Value::Null))),
        Order::Later { ms } => {
            write(&reply(Value::Null));
            sleep(Duration::from_millis(ms));
            write("later");
        }
        Order::ExitAfter { code, ms } => {
            write(&reply(Value::Null));
            sleep(Duration::from_millis(ms));
            exit(code);
        }
        Order::OtherId => write(r#"{"id": "another", "ok": true, "value": 1}"#),
        Order::Endless => loop {
            put(&"x".repeat(64 * 1024));
        },
        Order::Close => close_and_hang(),
        Order::Fill { bytes } => write(&reply("x".repeat(bytes.saturating_sub(2)).into())),
    }
}

fn write(line: &str) {
    put(&format!("{line}\n"));
}

/// Whoever read this may have gone, and then so does this.
fn put(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    if written.and_then(|()| stdout.flush()).is_err() {
        exit(1);
    }
}

fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn hang() -> ! {
    loop {
        sleep(Duration::from_secs(3600));
    }
}

/// Becomes a shell that has no standard output, which is how one is closed without unsafe code.
fn close_and_hang() -> ! {
    use std::os::unix::process::CommandExt;
    let error = Command::new("sh")
        .args(["-c", "exec >&-; exec sleep 3600"])
        .exec();
    panic!("no shell: {error}");
}
