//! Server-sent events out of the bytes of a response.
//!
//! Owns the framing of the WHATWG standard as far as model providers use it: `event` and `data`
//! fields, comments, all three line endings. Each byte is looked at once however the bytes are
//! cut, an event has a size limit, and text that is no UTF-8 is an error, not a gap. Pure: bytes in,
//! events out. An event that the bytes end in was never sent.

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its type, empty when none was named.
    pub name: String,
    /// Its data, lines joined by a line feed.
    pub data: String,
}

/// Why bytes are no stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SseError {
    #[error("an event of the stream has more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the stream is not UTF-8")]
    NotUtf8,
}

/// Reads a stream of events.
#[derive(Debug)]
pub(crate) struct Sse {
    event_bytes_max: usize,
    /// The line that is not complete yet.
    line: Vec<u8>,
    /// The fields of the event that is not complete yet.
    name: String,
    data: String,
    has_data: bool,
    /// A line ended with a carriage return; a line feed right behind belongs to it.
    after_return: bool,
    at_start: bool,
}

impl Sse {
    /// A stream whose events have at most so many bytes.
    pub(crate) fn new(event_bytes_max: usize) -> Self {
        Self {
            event_bytes_max,
            line: Vec::new(),
            name: String::new(),
            data: String::new(),
            has_data: false,
            after_return: false,
            at_start: true,
        }
    }

    /// Takes the next bytes and adds the events they complete.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), SseError> {
        while let Some(first) = bytes.first() {
            if self.after_return {
                self.after_return = false;
                if *first == b'\n' {
                    bytes = &bytes[1..];
                    continue;
                }
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.keep(bytes);
            };
            self.after_return = bytes[end] == b'\r';
            let rest = &bytes[end + 1..];
            if self.line.is_empty() {
                self.check_size(end)?;
                self.take_line(&bytes[..end], events)?;
            } else {
                self.keep(&bytes[..end])?;
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, events)?;
                self.line = line;
                self.line.clear();
            }
            bytes = rest;
        }
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), SseError> {
        self.check_size(part.len())?;
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn check_size(&self, more: usize) -> Result<(), SseError> {
        let limit = self.event_bytes_max;
        if self.line.len() + self.data.len() + self.name.len() + more > limit {
            return Err(SseError::TooLarge { limit });
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], events: &mut Vec<Event>) -> Result<(), SseError> {
        let line = std::str::from_utf8(line).map_err(|_| SseError::NotUtf8)?;
        let line = if std::mem::take(&mut self.at_start) {
            line.strip_prefix('\u{feff}').unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            self.end_event(events);
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.name),
            // Comments, ids and reconnection times say nothing here.
            _ => {}
        }
        Ok(())
    }

    fn end_event(&mut self, events: &mut Vec<Event>) {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            events.push(Event { name, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const STREAM: &str = "\u{feff}: hello\nevent: a\ndata: Grüße 東京 🗼\nid: 7\n\ndata:one\r\ndata\r\n\
        data: two\r\n\r\nevent: nothing\n\ndata: x\r\revent: b\rdata: {\"y\": 1}\r\r\ndata: never sent\n";

    fn read(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut sse = Sse::new(1024);
        let mut events = Vec::new();
        for chunk in chunks {
            sse.feed(chunk, &mut events).expect("a stream");
        }
        events
            .into_iter()
            .map(|event| (event.name, event.data))
            .collect()
    }

    #[test]
    fn a_stream_is_the_same_wherever_its_bytes_are_cut() {
        let bytes = STREAM.as_bytes();
        let whole = read(&[bytes]);
        let expected = [
            ("a", "Grüße 東京 🗼"),
            ("", "one\n\ntwo"),
            ("", "x"),
            ("b", "{\"y\": 1}"),
        ];
        let expected: Vec<_> = expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        assert_eq!(whole, expected);
        for cut in 0..bytes.len() {
            assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), whole);
    }

    #[test]
    fn an_event_over_the_limit_is_an_error_before_it_is_kept() {
        let mut sse = Sse::new(100);
        let mut events = Vec::new();
        for _ in 0..10 {
            sse.feed(b"data: 0123456789\n\n", &mut events)
                .expect("small events");
        }
        assert_eq!(events.len(), 10);
        sse.feed(b"data: ", &mut events).expect("the begin");
        let error = (0..20).find_map(|_| sse.feed(b"0123456789", &mut events).err());
        assert_eq!(error, Some(SseError::TooLarge { limit: 100 }));
        let mut sse = Sse::new(100);
        let error = (0..20).find_map(|_| sse.feed(b"data: 0123456789\n", &mut events).err());
        assert_eq!(error, Some(SseError::TooLarge { limit: 100 }));
    }

    #[test]
    fn what_is_no_utf_8_is_an_error_and_not_a_gap() {
        let mut sse = Sse::new(100);
        let error = sse.feed(b"data: a\xff\n\n", &mut Vec::new());
        assert_eq!(error, Err(SseError::NotUtf8));
    }

    #[test]
    fn the_time_for_an_event_grows_with_its_size_and_no_faster() {
        let time = |bytes: usize| {
            let event = format!("data: {}\n\n", "x".repeat(bytes));
            let begin = Instant::now();
            let mut sse = Sse::new(usize::MAX);
            let mut events = Vec::new();
            for chunk in event.as_bytes().chunks(64) {
                sse.feed(chunk, &mut events).expect("a stream");
            }
            assert_eq!(events[0].data.len(), bytes);
            begin.elapsed()
        };
        // The best of some, so that a machine that does other things beside says nothing.
        let best = |bytes| (0..5).map(|_| time(bytes)).min().expect("five times");
        let small = best(250_000).max(Duration::from_micros(100));
        // Sixteen times the bytes; a quadratic reader would take 256 times as long.
        assert!(best(4_000_000) < small * 100);
    }
}
