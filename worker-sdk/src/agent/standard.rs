//! An agent's error where a standard one is wanted, such as in a `main` that returns
//! `Box<dyn Error>`.
//!
//! Owns the one way out: [`AgentError`] is made of every standard error, so it cannot be one itself.

use std::error::Error as StdError;
use std::fmt;

use super::AgentError;

/// An error that reads as the agent's.
struct Standard(AgentError);

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a `main` prints: the type, where there is one, and the message.
impl fmt::Debug for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.error_type() {
            "" => write!(f, "{}", self.0),
            of => write!(f, "{of}: {}", self.0),
        }
    }
}

impl StdError for Standard {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl From<AgentError> for Box<dyn StdError + Send + Sync> {
    fn from(error: AgentError) -> Self {
        Box::new(Standard(error))
    }
}

impl From<AgentError> for Box<dyn StdError> {
    fn from(error: AgentError) -> Self {
        Box::new(Standard(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_error_goes_on_as_a_standard_one_with_its_causes() {
        fn fails() -> Result<(), AgentError> {
            let cause = std::io::Error::other("connection reset");
            Err(AgentError::new("RateLimited", "slow down").cause(cause))
        }
        fn local() -> Result<(), Box<dyn StdError>> {
            Ok(fails()?)
        }
        fn sent() -> Result<(), Box<dyn StdError + Send + Sync>> {
            Ok(fails()?)
        }
        let sent: Box<dyn StdError> = sent().expect_err("it fails");
        for error in [local().expect_err("it fails"), sent] {
            assert_eq!(error.to_string(), "slow down");
            assert_eq!(format!("{error:?}"), "RateLimited: slow down");
            let source = error.source().expect("a cause");
            assert_eq!(source.to_string(), "connection reset");
        }
        let nameless: Box<dyn StdError> = AgentError::invalid_request("no text").into();
        assert_eq!(format!("{nameless:?}"), "no text");
    }
}
