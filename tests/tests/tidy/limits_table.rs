//! The limits table of the protocol equals the defaults in code.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use harness_server::Limits;

/// The rows of the table, by name.
fn table() -> HashMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/README.md");
    let readme = fs::read_to_string(path).expect("the protocol's text");
    let section = readme
        .split("\n## 7. Limits")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the section on limits");
    section
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let name = cells.next()?.to_owned();
            Some((name, cells.next()?.trim_end_matches(" |").to_owned()))
        })
        .collect()
}

fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        _ if duration.is_zero() => "0".to_owned(),
        0 => format!("{} ms", duration.as_millis()),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) && seconds > 60 => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

fn size(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    match bytes {
        _ if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes / 1024),
    }
}

fn count(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}

fn millions(number: usize) -> String {
    assert!(number.is_multiple_of(1_000_000), "{number}");
    format!("{},000,000", number / 1_000_000)
}

fn days(duration: Duration) -> String {
    let seconds = duration.as_secs();
    assert!(seconds.is_multiple_of(24 * 3600), "{duration:?}");
    format!("{} days", seconds / (24 * 3600))
}

#[test]
fn every_default_in_code_is_the_one_in_the_table() {
    let limits = Limits::default();
    let table = table();
    for (name, value) in expected(&limits) {
        assert_eq!(table.get(name), Some(&value), "row \"{name}\"");
    }
    let accept = time(limits.accept_timeout);
    let per_mib = time(limits.accept_timeout_per_mib);
    assert_eq!(
        table.get("accept_timeout"),
        Some(&format!(
            "{accept} plus {per_mib} per MiB of request and replay"
        ))
    );
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn expected(limits: &Limits) -> Vec<(&'static str, String)> {
    let payload = limits.payload_bytes.as_u64() + 64 * 1024;
    vec![
        ("hello within", time(limits.hello_timeout)),
        ("heartbeat interval", time(limits.heartbeat_interval)),
        ("STOPPING and idle", time(limits.idle_stopping_timeout)),
        ("slots a worker", count(limits.worker_slots as u64)),
        (
            "different request schemas and receive limits of an agent",
            count(limits.agent_classes as u64),
        ),
        (
            "unacknowledged entries",
            count(limits.unacked_entries.into()),
        ),
        ("unacknowledged bytes", size(limits.unacked_bytes.as_u64())),
        ("payload", format!("{} minus 64 KiB", size(payload))),
        ("metadata bytes", size(limits.metadata_bytes.as_u64())),
        ("metadata keys", count(limits.metadata_keys as u64)),
        ("schema", size(limits.schema_bytes.as_u64())),
        ("labels", count(limits.labels as u64)),
        (
            "queued interactive runs of an agent",
            count(limits.queue_runs as u64),
        ),
        (
            "queued interactive bytes in all",
            size(limits.queue_bytes.as_u64()),
        ),
        ("timeout", time(limits.default_timeout)),
        ("timeout at most", time(limits.max_timeout)),
        ("AskMany window", count(limits.many_window.into())),
        (
            "AskStream and WatchRun heartbeat",
            time(limits.stream_heartbeat),
        ),
        (
            "journal entries of a run",
            count(limits.journal_entries as u64),
        ),
        (
            "journal of an interactive run",
            size(limits.journal_bytes.as_u64()),
        ),
        ("ended interactive runs kept for", time(limits.ended_kept)),
        (
            "ended interactive runs kept at most",
            count(limits.ended_runs as u64),
        ),
        (
            "entries of ended interactive runs kept at most",
            size(limits.ended_bytes.as_u64()),
        ),
        (
            "uncounted deliveries in a row",
            count(limits.uncounted_deliveries.into()),
        ),
        (
            "queued durable runs in all",
            format!(
                "{}; beyond it StartRun is `BUSY`",
                millions(limits.durable_runs)
            ),
        ),
        ("timeout of StartRun", time(limits.durable_timeout)),
        (
            "journal of a durable run",
            size(limits.durable_journal_bytes.as_u64()),
        ),
        (
            "reattach_window, interactive",
            time(limits.interactive_reattach_window),
        ),
        ("reattach_window, durable", time(limits.reattach_window)),
        (
            "interactive runs whose workers are waited for at once",
            count(limits.away_runs as u64),
        ),
        ("retention of durable runs", days(limits.retention)),
        (
            "agent names kept with a store",
            days(limits.agent_kept_stored),
        ),
        ("poison", count(limits.poison.into())),
        ("release_timeout", time(limits.release_timeout)),
        ("shutdown_grace", time(limits.shutdown_grace)),
        ("HTTP/2 keepalive interval", time(limits.keepalive_interval)),
        ("HTTP/2 keepalive timeout", time(limits.keepalive_timeout)),
        (
            "stream resets of a principal",
            format!("{} a second", count(limits.hang_ups_per_second.into())),
        ),
        (
            "stream resets of a principal, burst",
            count(limits.hang_ups_burst.into()),
        ),
        (
            "agent names kept after the last slot",
            time(limits.agent_kept),
        ),
        ("agent names kept at most", count(limits.agents as u64)),
        (
            "UNKNOWN_AGENT retryable after start",
            time(limits.connecting_timeout),
        ),
    ]
}
