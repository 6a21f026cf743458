//! What the system says of a process.

use std::fs;
use std::time::Duration;

/// Ticks a second of the times in `/proc`, which is the same on every Linux.
const TICKS: f64 = 100.0;

/// The CPU time a process has used so far.
///
/// # Panics
/// When there is no such process.
pub(crate) fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    // The name, in parentheses, may hold anything; the numbers come after it.
    let (_, numbers) = stat.rsplit_once(')').expect("a line of a process");
    let ticks: f64 = numbers
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<f64>().expect("ticks"))
        .sum();
    Duration::from_secs_f64(ticks / TICKS)
}

/// The memory a process has in use, in bytes.
///
/// # Panics
/// When there is no such process.
pub(crate) fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
}
