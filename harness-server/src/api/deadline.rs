//! When a run ends at the latest: its own timeout, shortened by the call's gRPC deadline so that
//! our typed answer comes before the transport's own.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// The margin before the call's deadline: 2 % of what is left, at least this,
const MARGIN_MIN: Duration = Duration::from_millis(10);

/// at most this, and at most half of what is left.
const MARGIN_MAX: Duration = Duration::from_millis(250);

/// How long the run may take when the call itself may take `call`.
pub(super) fn within(timeout: Duration, call: Option<Duration>) -> Duration {
    match call {
        None => timeout,
        Some(call) => {
            let margin = (call / 50).clamp(MARGIN_MIN, MARGIN_MAX).min(call / 2);
            timeout.min(call - margin)
        }
    }
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// What the `grpc-timeout` header says, if there is a valid one: up to 8 digits and a unit.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (unit_at, unit) = text.char_indices().next_back()?;
    let digits = &text[..unit_at];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(amount * 3600)),
        'M' => Some(Duration::from_secs(amount * 60)),
        'S' => Some(Duration::from_secs(amount)),
        'm' => Some(Duration::from_millis(amount)),
        'u' => Some(Duration::from_micros(amount)),
        'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_margin_is_two_percent_between_ten_and_250_ms_and_at_most_half() {
        for (call, run) in [(10, 5), (20, 10), (100, 90), (1_000, 980), (60_000, 59_750)] {
            assert_eq!(
                within(ms(1_000_000), Some(ms(call))),
                ms(run),
                "a call of {call} ms"
            );
        }
        assert_eq!(within(ms(500), Some(ms(1_500))), ms(500));
        assert_eq!(within(ms(500), None), ms(500));
    }

    #[test]
    fn headers_are_read_as_the_grpc_spec_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().expect("ascii"));
            of_headers(&headers)
        };
        assert_eq!(read("100m"), Some(ms(100)));
        assert_eq!(read("2S"), Some(ms(2_000)));
        assert_eq!(read("3M"), Some(ms(180_000)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        for bad in ["", "S", "1", "123456789S", "-1S", "1x", "1 S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
