//! The clock that all processes of this machine share.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
pub(crate) fn nanos() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a monotonic clock");
    let seconds = u64::try_from(now.tv_sec()).expect("a time since boot");
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec()).expect("a part of a second")
}
