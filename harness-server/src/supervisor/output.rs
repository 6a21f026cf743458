//! What a process writes, by line: read with a bound, tagged for the log, the last lines kept.
//!
//! Owns the reading. What a line means is the dialect's affair.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::info;

use crate::auth::InHand;
use crate::envelope::beginning;
use crate::ids::{AgentKey, Delivery, RunId};

/// The longest line of log that is taken whole; of a longer one the rest is dropped.
const LOG_LINE_BYTES: usize = 8 * 1024;

/// Lines that are kept for errors and operators.
const KEPT_LINES: usize = 20;

/// What is kept of each.
const KEPT_LINE_BYTES: usize = 256;

/// What is told of them together.
const TOLD_BYTES: usize = 1024;

/// What is read at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// A line of output, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// All of it.
    Whole(Vec<u8>),
    /// It is longer than it may be; so many bytes of it have come.
    TooLong(usize),
}

/// Reads lines of at most so many bytes.
pub(super) struct Lines<R> {
    from: R,
    bytes_max: usize,
    read: Vec<u8>,
    /// What has been searched for the end of a line.
    searched: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(from: R, bytes_max: usize) -> Self {
        Self {
            from,
            bytes_max,
            read: Vec::new(),
            searched: 0,
            ended: false,
        }
    }

    /// Whether more than the lines taken so far has been read.
    pub(super) fn has_more(&self) -> bool {
        !self.read.is_empty()
    }

    /// Whether nothing more will come than what has been read.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Reads to the end, for nothing but that its writer is not held up.
    pub(super) async fn drain(&mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }

    /// The next line; none at the end. A last line without an end is one. After a line that is
    /// too long, what is left of it is read as the next. Losing this future loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.take() {
                return Ok(Some(line));
            }
            if self.ended {
                let last = std::mem::take(&mut self.read);
                self.searched = 0;
                return Ok((!last.is_empty()).then_some(Line::Whole(last)));
            }
            self.read.reserve(CHUNK_BYTES);
            self.ended = self.from.read_buf(&mut self.read).await? == 0;
        }
    }

    fn take(&mut self) -> Option<Line> {
        let end = self.read[self.searched..].iter().position(|b| *b == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.read.len();
            if self.searched <= self.bytes_max {
                return None;
            }
            self.read.clear();
            return Some(Line::TooLong(std::mem::take(&mut self.searched)));
        };
        let rest = self.read.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.read, rest);
        self.searched = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(if line.len() > self.bytes_max {
            Line::TooLong(line.len())
        } else {
            Line::Whole(line)
        })
    }
}

/// Which stream a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Whose output it is.
#[derive(Clone)]
pub(super) struct Tag {
    pub(super) pool: AgentKey,
    pub(super) pid: u32,
}

/// The last lines of a process, and what it works on. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Tail {
    kept: Arc<Mutex<Kept>>,
    in_hand: InHand,
}

#[derive(Default)]
struct Kept {
    lines: VecDeque<(Option<RunId>, String)>,
}

impl Tail {
    /// One that learns from `in_hand` what the process works on.
    pub(super) fn of(in_hand: InHand) -> Self {
        Self {
            in_hand,
            ..Self::default()
        }
    }

    /// Says which request the lines to come belong to.
    pub(super) fn works_on(&self, delivery: Option<Delivery>) {
        self.in_hand.set(delivery);
    }

    fn run(&self) -> Option<RunId> {
        self.in_hand.get().map(|delivery| delivery.run)
    }

    /// The last lines of all.
    pub(super) fn last(&self) -> Vec<String> {
        last_of(self.lock().lines.iter().map(|(_, line)| line))
    }

    /// The last lines that were written during a run: no other caller's may be told to its caller.
    pub(super) fn last_of_run(&self, run: RunId) -> Vec<String> {
        let kept = self.lock();
        let lines = kept.lines.iter();
        last_of(
            lines
                .filter(|(of, _)| *of == Some(run))
                .map(|(_, line)| line),
        )
    }

    fn keep(&self, line: &str) {
        let run = self.run();
        let mut kept = self.lock();
        if kept.lines.len() >= KEPT_LINES {
            kept.lines.pop_front();
        }
        let line = beginning(line, KEPT_LINE_BYTES).to_owned();
        kept.lines.push_back((run, line));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last lines that fit what is told, in order.
fn last_of<'a>(lines: impl DoubleEndedIterator<Item = &'a String>) -> Vec<String> {
    let mut bytes = 0;
    let fits = |line: &&String| {
        bytes += line.len();
        bytes <= TOLD_BYTES
    };
    let mut last: Vec<String> = lines.rev().take_while(fits).cloned().collect();
    last.reverse();
    last
}

/// Logs a stream by line until its end. The last lines of standard error are kept.
pub(super) async fn log<R: AsyncRead + Unpin>(from: R, stream: Stream, tag: Tag, tail: Tail) {
    let mut lines = Lines::new(from, LOG_LINE_BYTES);
    let mut cut = false;
    // A stream that breaks has ended.
    while let Ok(Some(line)) = lines.next().await {
        // The rest of a line that was too long, up to its end.
        if std::mem::replace(&mut cut, matches!(line, Line::TooLong(_))) {
            continue;
        }
        let text = match line {
            Line::Whole(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Line::TooLong(_) => format!("(a line longer than {LOG_LINE_BYTES} bytes)"),
        };
        if stream == Stream::Stderr {
            tail.keep(&text);
        }
        let run = tail.run().map(|run| run.to_string()).unwrap_or_default();
        let stream = stream.name();
        info!(target: "worker", pool = %tag.pool, pid = tag.pid, run, stream, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], bytes_max: usize) -> Vec<Line> {
        let mut lines = Lines::new(input, bytes_max);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.expect("readable") {
            all.push(line);
        }
        all
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_end_at_a_line_feed_or_with_the_stream() {
        let read = lines(b"one\n\ntwo\r\nthree", 100).await;
        assert_eq!(
            read,
            [whole("one"), whole(""), whole("two"), whole("three")]
        );
        assert_eq!(lines(b"", 100).await, []);
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_given_up_at_its_limit() {
        let (here, mut there) = tokio::io::duplex(4 * CHUNK_BYTES);
        let mut lines = Lines::new(here, 10);
        tokio::io::AsyncWriteExt::write_all(&mut there, &[b'x'; 11])
            .await
            .expect("written");
        assert_eq!(lines.next().await.expect("read"), Some(Line::TooLong(11)));
    }

    #[tokio::test]
    async fn a_line_of_just_the_limit_is_whole() {
        let read = lines(b"0123456789\n01234567890\nok\n", 10).await;
        assert_eq!(read, [whole("0123456789"), Line::TooLong(11), whole("ok")]);
    }

    #[test]
    fn only_the_last_lines_are_kept_and_those_of_a_run_apart() {
        let tail = Tail::default();
        let run = RunId(uuid::Uuid::from_u128(1));
        tail.keep("before");
        let attempt = crate::ids::Attempt(1);
        tail.works_on(Some(Delivery { run, attempt }));
        tail.keep("during");
        tail.works_on(None);
        tail.keep("after");
        assert_eq!(tail.last(), ["before", "during", "after"]);
        assert_eq!(tail.last_of_run(run), ["during"]);
        for number in 0..100 {
            tail.keep(&number.to_string());
        }
        assert_eq!(tail.last().len(), KEPT_LINES);
        assert_eq!(tail.last().last().map(String::as_str), Some("99"));
        for _ in 0..KEPT_LINES {
            tail.keep(&"x".repeat(10_000));
        }
        assert_eq!(tail.last().len(), TOLD_BYTES / KEPT_LINE_BYTES);
    }
}
