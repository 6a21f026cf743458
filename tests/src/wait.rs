//! Waiting for a condition, with a bound; tests do not sleep for a time they hope is enough.

use std::future::Future;
use std::time::{Duration, Instant};

/// Longer than anything a test waits for takes on a busy machine.
pub const BOUND: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(5);

/// Waits until `condition` gives something, and gives that.
///
/// ```
/// let mut tries = 0;
/// let found = harness_tests::eventually("three tries", harness_tests::BOUND, || {
///     tries += 1;
///     (tries == 3).then_some(tries)
/// });
/// assert_eq!(found, 3);
/// ```
///
/// # Panics
/// When the bound has passed, naming `what`.
#[track_caller]
pub fn eventually<T>(what: &str, bound: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// [`eventually`] for a condition that awaits.
///
/// # Panics
/// When the bound has passed, naming `what`; a condition that hangs is cut off there too.
pub async fn eventually_async<T, F>(
    what: &str,
    bound: Duration,
    mut condition: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Option<T>>,
{
    let found = tokio::time::timeout(bound, async {
        loop {
            if let Some(found) = condition().await {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
    });
    match found.await {
        Ok(found) => found,
        Err(_) => panic!("not within {bound:?}: {what}"),
    }
}
