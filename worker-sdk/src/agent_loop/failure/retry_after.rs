//! How long a provider asks to wait.
//!
//! Owns every form that is in use: milliseconds, seconds with a fraction, a date, Google's
//! RetryInfo, the resets of rate limits. The longest counts. A date is held against the answer's
//! own Date header: no clock of this machine is asked, and one that is wrong does no harm.

use std::time::Duration;

use serde_json::Value;

/// The longest wait a reset is believed; a larger number is an instant in some epoch.
const RESET_SECONDS_MAX: f64 = 1e8;

/// The longest of the waits an answer names; None when it names none.
pub(super) fn wait(headers: &[(String, String)], body: &Value) -> Option<Duration> {
    let date = headers.iter().find(|(name, _)| name == "date");
    let date = date.map(|(_, value)| value.as_str());
    let named = headers
        .iter()
        .filter(|(name, _)| !is_left(name, headers))
        .filter_map(|(name, value)| of_header(name, value.trim(), date));
    named.chain(of_retry_info(body)).max()
}

fn of_header(name: &str, value: &str, date: Option<&str>) -> Option<Duration> {
    match name {
        "retry-after-ms" => seconds(value.parse::<f64>().ok()? / 1000.0),
        "retry-after" => match value.parse::<f64>() {
            Ok(number) => seconds(number),
            Err(_) => until(value, date?),
        },
        _ if name.starts_with("x-ratelimit-reset") => reset(value),
        _ => None,
    }
}

/// Whether this is the reset of a limit of which something is left: it is not what one waits for.
fn is_left(name: &str, headers: &[(String, String)]) -> bool {
    let Some(limit) = name.strip_prefix("x-ratelimit-reset") else {
        return false;
    };
    let remaining = headers
        .iter()
        .find(|(name, _)| name.strip_prefix("x-ratelimit-remaining") == Some(limit));
    remaining.is_some_and(|(_, value)| value.trim().parse::<f64>().is_ok_and(|left| left > 0.0))
}

/// From one date to another; nothing when it has passed.
fn until(instant: &str, date: &str) -> Option<Duration> {
    let instant = httpdate::parse_http_date(instant).ok()?;
    let date = httpdate::parse_http_date(date).ok()?;
    Some(instant.duration_since(date).unwrap_or_default())
}

/// `6m0s`, `1.5s`, `120ms`, or seconds.
fn reset(value: &str) -> Option<Duration> {
    if let Ok(number) = value.parse::<f64>() {
        return seconds(number).filter(|wait| wait.as_secs_f64() < RESET_SECONDS_MAX);
    }
    compound(value)
}

/// Numbers with units, one after the other.
fn compound(value: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = value;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "d" => 86_400.0,
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.checked_add(seconds(number * unit)?)?;
        rest = &rest[end..];
    }
    (!value.is_empty()).then_some(total)
}

/// `google.rpc.RetryInfo` in an error's details.
fn of_retry_info(body: &Value) -> Option<Duration> {
    let details = body.get("error")?.get("details")?.as_array()?;
    let delay = details
        .iter()
        .find_map(|detail| detail.get("retryDelay")?.as_str())?;
    compound(delay)
}

fn seconds(number: f64) -> Option<Duration> {
    // Longer than a duration can be is no reason to come back at once.
    if number > Duration::MAX.as_secs_f64() {
        return Some(Duration::MAX);
    }
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(headers: &[(&str, &str)]) -> Option<f64> {
        let headers: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        wait(&headers, &Value::Null).map(|wait| wait.as_secs_f64())
    }

    #[test]
    fn every_form_of_a_wait_is_read() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (headers, seconds) in [
            (vec![("retry-after-ms", "1500")], 1.5),
            (vec![("retry-after", "2")], 2.0),
            (vec![("retry-after", " 0.25 ")], 0.25),
            (
                vec![("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"), date],
                30.0,
            ),
            (
                vec![("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"), date],
                0.0,
            ),
            (vec![("retry-after", "1e30")], Duration::MAX.as_secs_f64()),
            (vec![("x-ratelimit-reset-tokens", "6m0s")], 360.0),
            (vec![("x-ratelimit-reset-requests", "120ms")], 0.12),
            (vec![("x-ratelimit-reset", "1h2m3.5s")], 3723.5),
            (vec![("x-ratelimit-reset", "7")], 7.0),
            (
                vec![
                    ("x-ratelimit-reset-requests", "6m0s"),
                    ("x-ratelimit-remaining-requests", "99"),
                    ("x-ratelimit-reset-tokens", "9s"),
                    ("x-ratelimit-remaining-tokens", "0"),
                ],
                9.0,
            ),
            (
                vec![
                    ("retry-after", "1"),
                    ("retry-after-ms", "2500"),
                    ("x-ratelimit-reset", "2s"),
                ],
                2.5,
            ),
        ] {
            assert_eq!(of(&headers), Some(seconds), "{headers:?}");
        }
    }

    #[test]
    fn what_names_no_wait_is_none() {
        for headers in [
            vec![],
            vec![("retry-after", "soon")],
            vec![("retry-after", "-1")],
            vec![("retry-after", "NaN")],
            // A date with no date to hold it against.
            vec![("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")],
            vec![("x-ratelimit-reset", "1788000000000")],
            vec![("x-ratelimit-remaining", "7")],
            vec![("x-ratelimit-reset", "6 minutes")],
            vec![
                ("x-ratelimit-reset-requests", "6m0s"),
                ("x-ratelimit-remaining-requests", "99"),
            ],
        ] {
            assert_eq!(of(&headers), None, "{headers:?}");
        }
    }

    #[test]
    fn a_retry_info_counts_like_a_header() {
        let body = json!({"error": {"details": [{"@type": "x"}, {"retryDelay": "48.5s"}]}});
        assert_eq!(wait(&[], &body), Some(Duration::from_millis(48_500)));
        let headers = [("retry-after".to_owned(), "60".to_owned())];
        assert_eq!(wait(&headers, &body), Some(Duration::from_secs(60)));
    }
}
