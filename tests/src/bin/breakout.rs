//! An agent that tries to break out, one way each run, and says on one line how that went: `done`
//! and what it has, or `refused` and why.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let way = arguments.first().map_or("", String::as_str);
    let with = arguments.get(1).map_or("", String::as_str);
    let went = match way {
        "read" => fs::read(with).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        "write" => fs::write(with, "broken out").map(|()| String::new()),
        "truncate" => truncate(with),
        "connect" => TcpStream::connect(with).map(|_| String::new()),
        "unix" => UnixStream::connect(with).map(|_| String::new()),
        "kill" => signal(with),
        "spawn" => spawn(number(with)),
        "open" => open(number(with)),
        "allocate" => allocate(number(with)),
        "files" => files(),
        "environment" => Ok(format!("{:?}", std::env::vars().collect::<Vec<_>>())),
        "spin" => spin(),
        "hang" => hang(),
        _ => Err(io::Error::other(format!("no such way: {way}"))),
    };
    match went {
        Ok(what) => say(&format!("done {what}")),
        Err(error) => say(&format!("refused {error}")),
    }
}

fn say(line: &str) {
    // Whoever listened may have gone.
    let _ = writeln!(io::stdout(), "{}", line.trim_end());
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

fn truncate(path: &str) -> io::Result<String> {
    OpenOptions::new().write(true).truncate(true).open(path)?;
    Ok(String::new())
}

fn signal(pid: &str) -> io::Result<String> {
    let pid = Pid::from_raw(pid.parse().expect("a process id"));
    kill(pid, Signal::SIGKILL)?;
    Ok(String::new())
}

/// Starts so many processes, which stay.
fn spawn(count: usize) -> io::Result<String> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..count {
        let mut child = Command::new(&program);
        child.arg("hang").stdout(Stdio::null());
        match child.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                let has = children.len();
                return Err(io::Error::other(format!("after {has}: {error}")));
            }
        }
    }
    Ok(children.len().to_string())
}

fn open(count: usize) -> io::Result<String> {
    let mut files = Vec::new();
    for _ in 0..count {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                let has = files.len();
                return Err(io::Error::other(format!("after {has}: {error}")));
            }
        }
    }
    Ok(files.len().to_string())
}

/// Takes memory and writes to all of it.
fn allocate(bytes: usize) -> io::Result<String> {
    let mut taken: Vec<u8> = Vec::new();
    taken.try_reserve_exact(bytes).map_err(io::Error::other)?;
    taken.resize(bytes, 1);
    Ok(taken.len().to_string())
}

/// What it has open, this listing apart.
fn files() -> io::Result<String> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The listing itself is gone by the time it is looked at.
        if fs::read_link(entry.path()).is_ok_and(|to| !to.ends_with("fd")) {
            numbers.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    numbers.sort();
    Ok(numbers.join(" "))
}

fn spin() -> io::Result<String> {
    loop {
        std::hint::spin_loop();
    }
}

fn hang() -> io::Result<String> {
    loop {
        std::thread::park();
    }
}
