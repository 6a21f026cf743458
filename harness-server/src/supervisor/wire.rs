//! How the harness, a guardian and the process that becomes the worker speak to each other: lines
//! of JSON over a Unix socket, the worker's standard streams beside the first.
//!
//! Owns the messages and their transport. All three are the same program, so there is no
//! version; what one does not know is an error, never left out.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use super::isolation::{Isolation, IsolationError};
use super::process::{Exit, STREAMS, Signal};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;

/// What the harness says to a guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The first: become this. Standard input, output and error go with its first byte.
    Launch(Box<Launch>),
    /// Any number after it.
    Signal(Signal),
}

/// What a process is to become.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Launch {
    /// The launcher and the command.
    pub(super) command: Vec<Word>,
    pub(super) cwd: Option<Word>,
    pub(super) env: Vec<(Word, Word)>,
    /// What is left of it to be taken on.
    pub(super) isolation: Isolation,
    pub(super) no_new_privs: bool,
    /// Whether it only looks for the command, and ends.
    pub(super) trial: bool,
}

/// What the system takes for text, which is nearly always text.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    Text(String),
    Bytes(Vec<u8>),
}

/// What a guardian says to the harness.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The command runs.
    Started { pid: u32 },
    /// It does not, and nothing is left of it.
    Refused(Refusal),
    /// The process has ended; descendants may be left.
    Exited(Exit),
    /// None are.
    Reaped,
}

/// What the process that becomes the worker says to its guardian. That its end closes after
/// `Ready` says that the command runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Progress {
    /// All but the execution is done.
    Ready,
    /// It ends.
    Refused(Refusal),
}

/// Why a command does not run. Errors of the system by their number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    Cwd(i32),
    Command(i32),
    Isolation(IsolationError),
    /// The guardian or the process failed at something that should never fail.
    Broken(String),
}

impl From<OsString> for Word {
    fn from(word: OsString) -> Self {
        match word.into_string() {
            Ok(text) => Self::Text(text),
            Err(word) => Self::Bytes(word.into_vec()),
        }
    }
}

impl From<Word> for OsString {
    fn from(word: Word) -> Self {
        match word {
            Word::Text(text) => text.into(),
            Word::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

impl From<IsolationError> for Refusal {
    fn from(error: IsolationError) -> Self {
        Self::Isolation(error)
    }
}

/// One end of a conversation.
pub(super) struct Channel {
    stream: UnixStream,
    read: Vec<u8>,
    /// How much of that has no end of a line.
    searched: usize,
    /// File descriptors that came.
    pub(super) streams: Vec<OwnedFd>,
}

/// A message as a line.
pub(super) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends the first bytes of a line, the file descriptors beside them; gives how many.
pub(super) fn send_first(
    socket: impl AsFd,
    line: &[u8],
    streams: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fits = beside.push(SendAncillaryMessage::ScmRights(streams));
    assert!(fits, "the streams must fit beside a message");
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(
        socket,
        &[IoSlice::new(line)],
        &mut beside,
        flags,
    )?)
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            read: Vec::new(),
            searched: 0,
            streams: Vec::new(),
        }
    }

    /// Sends a line, with the file descriptors beside it; waits while it does not fit.
    pub(super) fn send(&self, line: &[u8], streams: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = send_first(&self.stream, line, streams)?;
        io::Write::write_all(&mut &self.stream, &line[sent..])
    }

    /// Reads what is there, or waits for something; false when the other end has closed.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        let mut bytes = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let message = rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC,
        );
        let message = match message {
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            other => other?,
        };
        for part in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                self.streams.extend(fds);
            }
        }
        self.read.extend_from_slice(&bytes[..message.bytes]);
        Ok(message.bytes > 0)
    }

    /// The next whole line that has been read.
    pub(super) fn line(&mut self) -> Option<Vec<u8>> {
        let fresh = &self.read[self.searched..];
        let Some(end) = fresh.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.read.len();
            return None;
        };
        let rest = self.read.split_off(self.searched + end + 1);
        self.searched = 0;
        Some(std::mem::replace(&mut self.read, rest))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
