//! What the test on this thread logged.
//!
//! The subscriber is the whole process's, because tracing remembers per callsite whether anybody
//! listens; the lines are the thread's, because each test has a thread and a runtime on it.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;

static CAPTURED: Once = Once::new();

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Starts listening, at INFO.
pub(crate) fn capture() {
    CAPTURED.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(|| Lines)
            .init();
    });
}

pub(crate) fn text() -> String {
    LINES.with_borrow(|lines| String::from_utf8(lines.clone()).unwrap())
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
