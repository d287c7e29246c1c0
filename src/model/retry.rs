//! When a request is made again.

use std::time::Duration;

use chrono::DateTime;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// First wait; doubles.
const BACKOFF_MS_MIN: u64 = 500;
/// Longest wait that no provider asked for.
const BACKOFF_MS_MAX: u64 = 30_000;
/// Shortest wait, whatever a provider asks for.
const WAIT_MIN: Duration = Duration::from_millis(100);

/// Whether this status is worth another try: overload and faults pass, refusals do not.
pub(super) fn passes(status: StatusCode) -> bool {
    status.is_server_error()
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

/// When the provider asks to be asked again: `retry-after-ms`, seconds, or a date.
pub(super) fn asked(headers: &HeaderMap, wall_ms: i64) -> Option<Duration> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .map(str::trim)
    };
    let ms = reqwest::header::HeaderName::from_static("retry-after-ms");
    if let Some(ms) = text(ms).and_then(|t| t.parse().ok()) {
        return Some(Duration::from_millis(ms));
    }
    let after = text(RETRY_AFTER)?;
    if let Ok(seconds) = after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = DateTime::parse_from_rfc2822(after).ok()?;
    let wait_ms = date.timestamp_millis().saturating_sub(wall_ms);
    Some(Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0)))
}

/// How long to wait after so many tries: what the provider asked for; else a doubling time, half
/// of it by chance, so that those who failed together do not come back together.
pub(super) fn wait(tries: u32, asked: Option<Duration>, chance: [u8; 16]) -> Duration {
    if let Some(asked) = asked {
        return asked.max(WAIT_MIN);
    }
    let doubled = 1_u64
        .checked_shl(tries.saturating_sub(1))
        .map_or(BACKOFF_MS_MAX, |n| n.saturating_mul(BACKOFF_MS_MIN));
    let half = doubled.min(BACKOFF_MS_MAX) / 2;
    let [.., a, b] = chance;
    let share = u64::from(u16::from_be_bytes([a, b]));
    Duration::from_millis(half + half * share / u64::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_passes_and_refusals_do_not() {
        for (status, passing) in [
            (408, true),
            (429, true),
            (500, true),
            (503, true),
            (529, true),
            (302, false),
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (413, false),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(passes(status), passing, "{status}");
        }
    }

    #[test]
    fn providers_ask_in_three_ways() {
        let ask = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a value"));
            asked(&headers, 1_445_412_479_000)
        };
        assert_eq!(ask("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(ask("retry-after-ms", "80"), Some(Duration::from_millis(80)));
        let date = "Wed, 21 Oct 2015 07:28:00 GMT";
        assert_eq!(ask("retry-after", date), Some(Duration::from_secs(1)));
        let past = "Wed, 21 Oct 2015 07:20:00 GMT";
        assert_eq!(ask("retry-after", past), Some(Duration::ZERO));
        assert_eq!(ask("retry-after", "soon"), None);
        assert_eq!(ask("retry-after", "-1"), None);
        assert_eq!(ask("x", "1"), None);
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        let low = |tries| wait(tries, None, [0; 16]);
        let high = |tries| wait(tries, None, [255; 16]);
        assert_eq!(low(1), Duration::from_millis(250));
        assert_eq!(high(1), Duration::from_millis(500));
        assert_eq!(high(3), Duration::from_secs(2));
        assert_eq!(high(7), Duration::from_secs(30));
        assert_eq!(high(u32::MAX), Duration::from_secs(30));
        let asked = Some(Duration::from_secs(90));
        assert_eq!(wait(1, asked, [0; 16]), Duration::from_secs(90));
        assert_eq!(wait(1, Some(Duration::ZERO), [0; 16]), WAIT_MIN);
    }
}
