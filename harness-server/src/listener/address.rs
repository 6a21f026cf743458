//! An address: `host:port`, `http://host:port` or `unix:/absolute/path`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// An absolute path.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not an address: use host:port, http://host:port or unix:/absolute/path")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let is_file = path.is_absolute() && path.file_name().is_some();
            return is_file.then_some(Self::Unix(path)).ok_or_else(bad);
        }
        let host_port = text
            .strip_prefix("http://")
            .unwrap_or(text)
            .trim_end_matches('/');
        let (host, port) = host_port.rsplit_once(':').ok_or_else(bad)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let is_host = !host.is_empty() && !host.contains('/') && (bracketed || !host.contains(':'));
        if !is_host || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        Ok(Self::Tcp(host_port.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host_port) => f.write_str(host_port),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_are_read() {
        let tcp = |text: &str| Ok(Address::Tcp(text.to_owned()));
        assert_eq!("127.0.0.1:7070".parse(), tcp("127.0.0.1:7070"));
        assert_eq!("http://localhost:1/".parse(), tcp("localhost:1"));
        assert_eq!("[::1]:7070".parse(), tcp("[::1]:7070"));
        assert_eq!(
            "unix:/run/h.sock".parse(),
            Ok(Address::Unix("/run/h.sock".into()))
        );
    }

    #[test]
    fn anything_else_is_told_the_three_forms() {
        for bad in [
            "",
            "localhost",
            ":7070",
            "::1:7070",
            "host:99999",
            "unix:h.sock",
            "unix:/",
            "ftp://a:1",
        ] {
            let error = bad.parse::<Address>().expect_err(bad).to_string();
            assert!(error.contains("unix:/absolute/path"), "{error}");
        }
    }
}
