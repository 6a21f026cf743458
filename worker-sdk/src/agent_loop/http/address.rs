//! The address of a provider.
//!
//! Owns what may be one, how the path of a call joins it, and what of it may be shown: its query can
//! hold a key. Pure.

use std::net::IpAddr;

use reqwest::Url;

use super::{ProviderError, SECRET_BYTES_MIN};
use crate::agent_loop::excerpt::head;
use crate::agent_loop::redact::Redactor;

/// Bytes of an address that cannot be used that are shown at most.
const SHOWN_BYTES: usize = 200;

/// An address that calls can go to.
#[derive(Clone)]
pub(super) struct Address {
    /// Up to where the path of a call begins.
    base: String,
    /// What stands behind the path; empty when nothing does.
    query: String,
    is_loopback: bool,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, ProviderError> {
        let refused = |shown: &str, why| ProviderError::InvalidAddress {
            address: head(shown, SHOWN_BYTES).to_owned(),
            why,
        };
        // What cannot be read may have a password anywhere before an @.
        let shown = match text.split(['?', '#']).next() {
            Some(shown) if !text.contains('@') => shown,
            Some(_) | None => "[redacted]",
        };
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(refused(shown, "leave out the space or line break in it"));
        }
        let no_http = "it has to be an http or https address, such as https://example.com/v1";
        let mut url = Url::parse(text).map_err(|_| refused(shown, no_http))?;
        let Some(host) = url.host_str().map(str::to_owned) else {
            return Err(refused(shown, no_http));
        };
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused(shown, no_http));
        }
        if !url.username().is_empty() || url.password().is_some() {
            let why = "leave out the user name and password in it, and set the header \
                authorization instead";
            return Err(refused(&host, why));
        }
        if url.fragment().is_some() {
            return Err(refused(shown, "leave out what stands behind the #"));
        }
        let query = url.query().unwrap_or_default().to_owned();
        url.set_query(None);
        Ok(Self {
            base: url.as_str().trim_end_matches('/').to_owned(),
            query,
            is_loopback: is_loopback(&host),
        })
    }

    /// Where a call goes.
    pub(super) fn of_call(&self, path: &str) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{}{path}{mark}{}", self.base, self.query)
    }

    /// The same as it may be shown.
    pub(super) fn shown(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Hides what stands in the query: it can be a key, and a server may repeat it.
    pub(super) fn hide_query(&self, secrets: &mut Redactor) {
        let values = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        values
            .filter(|(name, value)| *name != "api-version" && value.len() >= SECRET_BYTES_MIN)
            .for_each(|(_, value)| secrets.register(value));
    }

    /// Whether it is on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        self.is_loopback
    }
}

fn is_loopback(host: &str) -> bool {
    let number: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    match number {
        Ok(number) => number.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_of_the_address_stands_behind_the_path_of_every_call_and_is_not_shown() {
        for (text, url) in [
            ("http://h/v1", "http://h/v1/chat"),
            ("http://h/v1/", "http://h/v1/chat"),
            ("https://h", "https://h/chat"),
            ("http://h/v1?", "http://h/v1/chat"),
            (
                "http://h/v1?api-version=7&k=sk",
                "http://h/v1/chat?api-version=7&k=sk",
            ),
            (
                "http://h/v1/?api-version=7",
                "http://h/v1/chat?api-version=7",
            ),
        ] {
            let address = Address::parse(text).expect(text);
            assert_eq!(address.of_call("/chat"), url, "{text}");
            let shown = address.shown("/chat");
            assert_eq!(url.split('?').next(), Some(shown.as_str()), "{text}");
        }
    }

    #[test]
    fn an_address_that_cannot_be_used_is_refused_with_what_to_do_and_shows_no_password() {
        for (text, todo) in [
            ("", "http or https"),
            ("api.example.com", "http or https"),
            ("ftp://h", "http or https"),
            ("http://", "http or https"),
            (" http://h", "space"),
            ("http://h/v1\n", "space"),
            ("http://h/a b", "space"),
            ("http://me:hunter22@h/v1", "authorization"),
            ("http://hunter22@h/v1", "authorization"),
            ("http://me:hunter22?x@h:y/v1", "http or https"),
            (" http://me:hunter22@h/v1", "space"),
            ("ftp://me:hunter22@h/v1", "http or https"),
            ("x?key=hunter22", "http or https"),
            ("http://h/v1#part", "#"),
        ] {
            let error = Address::parse(text).err().expect(text);
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(todo), "{text}: {shown}");
            assert!(!shown.contains("hunter22"), "{text}: {shown}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (host, expected) in [
            ("127.0.0.1", true),
            ("127.9.9.9:8000", true),
            ("[::1]:8000", true),
            ("localhost:1", true),
            ("LOCALHOST", true),
            ("models.localhost", true),
            ("10.0.0.1", false),
            ("notlocalhost", false),
            ("localhost.example.com", false),
            ("[2001:db8::1]", false),
        ] {
            let address = Address::parse(&format!("http://{host}/v1")).expect(host);
            assert_eq!(address.is_loopback(), expected, "{host}");
        }
    }
}
