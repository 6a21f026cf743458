//! What the environment says of the harness: to a person's worker where it is, to a pool's process
//! also who that is.
//!
//! Owns the variables and what follows from them. Dials nothing.

use super::{Address, Credential, DEFAULT_ADDRESS};
use crate::error::{Error, ErrorKind};

/// The environment variable a worker and a client read when they are given no address.
pub const ADDRESS_VARIABLE: &str = "HARNESS_ADDRESS";
/// The environment variable with the token that calls to that address show.
pub const TOKEN_VARIABLE: &str = "HARNESS_TOKEN";
/// The environment variable a worker reads when its agent is given no name.
pub const AGENT_VARIABLE: &str = "HARNESS_AGENT";

/// A harness, and who is calling it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) address: Address,
    pub(crate) credential: Credential,
}

/// The variables that are set, and not to nothing.
#[derive(Clone)]
pub(crate) struct Environment {
    address: Option<String>,
    token: Option<String>,
    pub(crate) agent: Option<String>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        Self {
            address: set(ADDRESS_VARIABLE),
            token: set(TOKEN_VARIABLE),
            agent: set(AGENT_VARIABLE),
        }
    }

    /// That all is there which a pool gives to its processes.
    pub(crate) fn check_of_pool(&self) -> Result<(), Error> {
        let all = [
            (ADDRESS_VARIABLE, &self.address),
            (TOKEN_VARIABLE, &self.token),
            (AGENT_VARIABLE, &self.agent),
        ];
        let missing = all.iter().filter(|(_, value)| value.is_none());
        let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "{} not set: from_env() is for a worker that a pool of the harness starts; name it as \
             the command of a pool, or leave from_env() out to start it yourself",
            match missing[..] {
                [one] => format!("{one} is"),
                _ => format!("{} are", missing.join(", ")),
            }
        );
        Err(Error::new(ErrorKind::InvalidWorker, message))
    }

    /// `url`, or what the variables say, or the default. A token is shown only to whom the
    /// environment names.
    pub(crate) fn place(&self, url: Option<&str>) -> Result<Place, Error> {
        let (address, token) = match url {
            Some(url) => (url, None),
            None => {
                let address = self.address.as_deref().unwrap_or(DEFAULT_ADDRESS);
                (address, self.token.as_deref())
            }
        };
        Ok(Place {
            address: Address::parse(address)?,
            credential: match token {
                Some(token) => Credential::bearer(token)?,
                None => Credential::default(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(set: &[(&str, &str)]) -> Environment {
        Environment::of(|name| {
            let found = set.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_a_pool_gives_and_is_not_there_is_named() {
        let all = [
            (ADDRESS_VARIABLE, "unix:/run/s"),
            (TOKEN_VARIABLE, "secret"),
            (AGENT_VARIABLE, "echo"),
        ];
        assert!(environment(&all).check_of_pool().is_ok());
        for left_out in 0..all.len() {
            let mut some = all;
            some[left_out].1 = "";
            let error = environment(&some).check_of_pool().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidWorker);
            let message = error.message();
            assert!(message.contains(all[left_out].0), "{message}");
            assert!(message.contains("is not set"), "{message}");
        }
        let error = environment(&[]).check_of_pool().unwrap_err();
        for (name, _) in all {
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn a_token_is_shown_only_to_whom_the_environment_names() {
        let shown = |environment: &Environment, url| {
            format!("{:?}", environment.place(url).unwrap().credential)
        };
        let pool = environment(&[
            (ADDRESS_VARIABLE, "unix:/run/s"),
            (TOKEN_VARIABLE, "secret"),
        ]);
        assert_eq!(shown(&pool, None), "token");
        assert_eq!(shown(&pool, Some("127.0.0.1:7070")), "none");
        assert_eq!(shown(&environment(&[]), None), "none");
        let place = pool.place(None).unwrap();
        assert_eq!(place.address.to_string(), "unix:/run/s");
        let default = environment(&[]).place(None).unwrap();
        assert_eq!(default.address.to_string(), DEFAULT_ADDRESS);
    }

    #[test]
    fn a_token_that_can_be_none_is_told_without_it() {
        let pool = environment(&[(TOKEN_VARIABLE, "se\ncret")]);
        let error = pool.place(None).unwrap_err();
        assert!(!error.to_string().contains("cret"), "{error}");
    }
}
