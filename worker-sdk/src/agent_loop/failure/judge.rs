//! The order in which a provider's error is judged.

use serde_json::Value;

use super::retry_after;
use super::{Failure, ModelError};
use crate::agent_loop::excerpt::head;

/// Bytes of a provider's text that an error keeps at most.
const MESSAGE_BYTES: usize = 500;

/// What a provider answered instead of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answered<'a> {
    /// The HTTP status; that of the error's type when it came inside a stream.
    pub status: Option<u16>,
    /// Names in lower case, and values.
    pub headers: &'a [(String, String)],
    /// The body, or the error's event.
    pub body: &'a str,
    /// Whether the input was estimated to be over the model's limit.
    pub is_over_the_limit: bool,
}

/// What an error of a provider means, judged in the one order.
///
/// ```
/// use worker_sdk::agent_loop::{Answered, Failure, judge};
///
/// let answered = Answered {
///     status: Some(429),
///     headers: &[("retry-after".into(), "2".into())],
///     body: r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#,
///     ..Answered::default()
/// };
/// let error = judge(answered);
/// assert_eq!(error.failure(), Failure::Transient);
/// assert_eq!(error.retry_after().map(|wait| wait.as_secs()), Some(2));
/// ```
pub fn judge(answered: Answered<'_>) -> ModelError {
    let body: Value = serde_json::from_str(answered.body).unwrap_or(Value::Null);
    let facts = Facts::of(&body, answered.body);
    let status = answered.status.or_else(|| facts.status());
    let failure = failure(status, &facts, &answered);
    let wait = retry_after::wait(answered.headers, &body);
    ModelError::new(failure, facts.line(status))
        .with_status(status)
        .with_retry_after(wait.filter(|_| failure == Failure::Transient))
}

fn failure(status: Option<u16>, facts: &Facts<'_>, answered: &Answered<'_>) -> Failure {
    let is_limited = status == Some(429);
    if facts.says_context_length(status) || (is_limited && answered.is_over_the_limit) {
        return Failure::ContextLength;
    }
    if facts.says_billing() || status == Some(402) {
        return Failure::Billing;
    }
    if matches!(status, Some(401 | 403)) {
        return Failure::Credentials;
    }
    match header(answered.headers, "x-should-retry") {
        Some("true") => return Failure::Transient,
        Some("false") => return Failure::Rejected,
        Some(_) | None => {}
    }
    match status {
        Some(408 | 409 | 429 | 500..=599) => Failure::Transient,
        Some(_) => Failure::Rejected,
        None => Failure::Unreadable,
    }
}

/// What a body says of the error, wherever the provider puts it.
struct Facts<'a> {
    error: &'a Value,
    text: &'a str,
    message: &'a str,
}

impl<'a> Facts<'a> {
    fn of(body: &'a Value, text: &'a str) -> Self {
        let error = match body.get("error") {
            Some(error) if !error.is_null() => error,
            Some(_) | None => body,
        };
        let message = error.get("message").or_else(|| body.get("message"));
        let message = message.and_then(Value::as_str).or_else(|| error.as_str());
        Self {
            error,
            text,
            message: message.unwrap_or(text),
        }
    }

    fn word(&self, name: &str) -> &'a str {
        self.error
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The status that an error inside a stream would have had outside.
    fn status(&self) -> Option<u16> {
        let code = self.error.get("code").and_then(Value::as_u64);
        let code = code.and_then(|code| u16::try_from(code).ok());
        code.filter(|code| (400..600).contains(code))
            .or_else(|| status_of_type(self.word("type")))
            .or_else(|| status_of_type(self.word("code")))
    }

    fn says_context_length(&self, status: Option<u16>) -> bool {
        const CODES: [&str; 3] = [
            "context_length_exceeded",
            "too_many_prompt_tokens",
            "request_too_large",
        ];
        if CODES.contains(&self.word("code")) || CODES.contains(&self.word("type")) {
            return true;
        }
        let is_about_the_request = matches!(status, Some(400 | 413 | 422) | None);
        if is_about_the_request {
            const PHRASES: [&str; 7] = [
                "prompt is too long",
                "maximum context length",
                "exceeds the context window",
                "input token count",
                "input tokens exceeds maximum length",
                "total length of all messages is too long",
                "input length and `max_tokens` exceed context limit",
            ];
            let message = self.message.to_lowercase();
            return PHRASES.iter().any(|phrase| message.contains(phrase));
        }
        status == Some(429) && self.limits_input_tokens()
    }

    /// Whether the quota that ran out is one of input tokens, which a prompt alone can exceed.
    fn limits_input_tokens(&self) -> bool {
        let details = self.error.get("details").and_then(Value::as_array);
        details
            .into_iter()
            .flatten()
            .filter_map(|detail| detail.get("violations")?.as_array())
            .flatten()
            .filter_map(|violation| violation.get("quotaMetric")?.as_str())
            .any(|metric| metric.contains("input_token_count"))
    }

    fn says_billing(&self) -> bool {
        const CODES: [&str; 3] = [
            "insufficient_quota",
            "billing_hard_limit_reached",
            "billing_error",
        ];
        CODES.contains(&self.word("code"))
            || CODES.contains(&self.word("type"))
            || self.message.contains("credit balance is too low")
    }

    fn line(&self, status: Option<u16>) -> String {
        let message = if self.message.is_empty() {
            self.text
        } else {
            self.message
        };
        let message = head(message, MESSAGE_BYTES);
        match status {
            Some(status) if message.is_empty() => format!("the provider answered {status}"),
            Some(status) => format!("the provider answered {status}: {message}"),
            None => {
                format!("the provider answered what is no error it is known to send: {message}")
            }
        }
    }
}

/// The HTTP status that stands for an error's type or code.
fn status_of_type(name: &str) -> Option<u16> {
    Some(match name {
        "invalid_request_error" | "invalid_request" => 400,
        "authentication_error" | "invalid_api_key" => 401,
        "billing_error" | "insufficient_quota" | "billing_hard_limit_reached" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" | "rate_limit_exceeded" | "requests" | "tokens" => 429,
        "api_error" | "server_error" | "internal_server_error" => 500,
        "timeout_error" => 504,
        "overloaded_error" | "engine_overloaded" => 529,
        _ => return None,
    })
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn judged(status: u16, body: &str) -> Failure {
        judge(Answered {
            status: Some(status),
            body,
            ..Answered::default()
        })
        .failure()
    }

    #[test]
    fn each_error_means_what_the_first_rule_that_fits_says() {
        let message = |text: &str| format!(r#"{{"error":{{"message":"{text}"}}}}"#);
        let code = |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"x"}}}}"#);
        for (status, body, failure) in [
            (
                400,
                message("prompt is too long: 3 tokens > 2 maximum"),
                Failure::ContextLength,
            ),
            (400, code("context_length_exceeded"), Failure::ContextLength),
            (413, code("request_too_large"), Failure::ContextLength),
            (429, code("insufficient_quota"), Failure::Billing),
            (
                400,
                message("Your credit balance is too low to access"),
                Failure::Billing,
            ),
            (402, message("pay"), Failure::Billing),
            (401, message("who"), Failure::Credentials),
            (403, message("no"), Failure::Credentials),
            (408, String::new(), Failure::Transient),
            (409, String::new(), Failure::Transient),
            (
                429,
                message("You exceeded your current quota"),
                Failure::Transient,
            ),
            (500, "<html>".to_owned(), Failure::Transient),
            (529, message("Overloaded"), Failure::Transient),
            (400, message("429 quota"), Failure::Rejected),
            (404, message("no such model"), Failure::Rejected),
        ] {
            assert_eq!(judged(status, &body), failure, "{status} {body}");
        }
    }

    #[test]
    fn a_quota_of_input_tokens_is_a_prompt_that_is_too_long() {
        let body = r#"{"error":{"code":429,"message":"quota","details":[{"violations":[
            {"quotaMetric":"x/generate_content_paid_tier_input_token_count"}]}]}}"#;
        assert_eq!(judged(429, body), Failure::ContextLength);
        let other = body.replace("input_token_count", "requests");
        assert_eq!(judged(429, &other), Failure::Transient);
    }

    #[test]
    fn a_429_for_a_prompt_over_the_limit_is_its_length() {
        let answered = Answered {
            status: Some(429),
            is_over_the_limit: true,
            ..Answered::default()
        };
        assert_eq!(judge(answered).failure(), Failure::ContextLength);
    }

    #[test]
    fn the_provider_has_the_word_on_retrying_after_the_fatal_ones() {
        let headers = [("x-should-retry".to_owned(), "false".to_owned())];
        let with = |status, body, headers| {
            judge(Answered {
                status: Some(status),
                headers,
                body,
                ..Answered::default()
            })
            .failure()
        };
        assert_eq!(with(529, "", &headers[..]), Failure::Rejected);
        let headers = [("x-should-retry".to_owned(), "true".to_owned())];
        assert_eq!(with(400, "", &headers[..]), Failure::Transient);
        assert_eq!(with(401, "", &headers[..]), Failure::Credentials);
    }

    #[test]
    fn an_error_inside_a_stream_has_the_meaning_it_has_outside() {
        for (body, failure) in [
            (
                r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
                Failure::Transient,
            ),
            (
                r#"{"type":"error","error":{"type":"api_error"}}"#,
                Failure::Transient,
            ),
            (
                r#"{"error":{"type":"rate_limit_error"}}"#,
                Failure::Transient,
            ),
            (
                r#"{"error":{"code":"insufficient_quota"}}"#,
                Failure::Billing,
            ),
            (
                r#"{"error":{"code":502,"message":"upstream"}}"#,
                Failure::Transient,
            ),
            (
                r#"{"error":{"type":"authentication_error"}}"#,
                Failure::Credentials,
            ),
            (
                r#"{"error":{"message":"prompt is too long"}}"#,
                Failure::ContextLength,
            ),
            (r#"{"error":{"message":"something"}}"#, Failure::Unreadable),
        ] {
            let answered = Answered {
                body,
                ..Answered::default()
            };
            assert_eq!(judge(answered).failure(), failure, "{body}");
        }
    }

    #[test]
    fn a_wait_is_kept_only_where_waiting_helps() {
        let headers = [("retry-after".to_owned(), "3".to_owned())];
        let error = |status| {
            judge(Answered {
                status: Some(status),
                headers: &headers,
                ..Answered::default()
            })
        };
        assert_eq!(error(429).retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(error(401).retry_after(), None);
    }
}
