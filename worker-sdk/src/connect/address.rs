//! The address of a harness: host:port, http://host:port or unix:/absolute/path.
//!
//! Owns parsing and the message that tells the forms. Resolves and opens nothing.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Where a harness listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// host:port
    Tcp(String),
    /// An absolute path.
    Unix(String),
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path
                .strip_prefix("//")
                .filter(|rest| rest.starts_with('/'))
                .unwrap_or(path);
            if path.len() < 2 || !path.starts_with('/') {
                return Err(invalid(text, "the path of a Unix socket must be absolute"));
            }
            return Ok(Self::Unix(path.to_owned()));
        }
        if text.starts_with("https://") {
            return Err(invalid(text, "TLS is not supported yet"));
        }
        let authority = match text.split_once("://") {
            Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some((scheme, _)) => return Err(invalid(text, &format!("unknown scheme {scheme}"))),
            None => text,
        };
        let Some((host, port)) = authority.rsplit_once(':') else {
            return Err(invalid(text, "the port is missing"));
        };
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(invalid(text, "the host is not one"));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(invalid(
                text,
                "an IPv6 host stands in brackets, as in [::1]:7070",
            ));
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(invalid(text, "the port is not a number from 1 to 65535"));
        }
        Ok(Self::Tcp(authority.to_owned()))
    }

    /// The address as the transport wants it.
    pub(super) fn target(&self) -> String {
        match self {
            Self::Tcp(authority) => format!("http://{authority}"),
            Self::Unix(path) => format!("unix://{path}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "http://{authority}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

fn invalid(text: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidAddress,
        format!(
            "{text:?} is no address of a harness: {why}; \
             use host:port, http://host:port or unix:/absolute/path"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_are_addresses() {
        for (text, target) in [
            ("localhost:7070", "http://localhost:7070"),
            ("http://10.0.0.1:80/", "http://10.0.0.1:80"),
            ("[::1]:7070", "http://[::1]:7070"),
            ("unix:/run/harness.sock", "unix:///run/harness.sock"),
            ("unix:///run/harness.sock", "unix:///run/harness.sock"),
        ] {
            assert_eq!(Address::parse(text).unwrap().target(), target, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_forms() {
        for text in [
            "",
            "localhost",
            "localhost:",
            "localhost:0",
            "localhost:x",
            ":7070",
            "::1:7070",
            "unix:relative",
            "unix:",
            "unix:/",
            "ftp://a:1",
            "http://a:1/path",
            "http://u@a:1",
            "https://a:1",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidAddress, "{text}");
            for form in ["host:port", "http://host:port", "unix:/absolute/path"] {
                assert!(error.message().contains(form), "{error}");
            }
        }
        assert!(
            Address::parse("https://a:1")
                .unwrap_err()
                .message()
                .contains("TLS is not supported yet")
        );
    }
}
