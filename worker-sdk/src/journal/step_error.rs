//! Why a step gave no result.
//!
//! Owns [`StepError`] and what the caller of a run gets of it when an agent passes it on.

use std::error::Error as StdError;
use std::fmt;

use crate::agent::AgentError;
use crate::error::Error;

/// Why a step gave no result. `?` in an agent passes it on as what it is: the error of the work as
/// that, a mismatch as JOURNAL_MISMATCH, which is never retried.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepError {
    /// The work failed, now or in the attempt that recorded it.
    Failed(AgentError),
    /// A side effect was begun in an earlier attempt and nothing says how that ended. It is not
    /// run again. Whoever handles this decides what to do, by looking at the other system.
    OutcomeUnknown {
        /// The step's name.
        name: String,
        /// Its key.
        key: String,
        /// What the work was given to tell the other system.
        idempotency_key: String,
    },
    /// The code asks for another step than the next one that the journal holds: it is not the code
    /// that wrote it.
    Mismatch {
        /// The step asked for, as name and key.
        asked: String,
        /// The next one recorded.
        recorded: String,
    },
    /// The recorded result is not of the type asked for. At the first time that is a type which
    /// does not come back from its own JSON.
    Unreadable {
        /// The step, as name and key.
        step: String,
        /// What serde says.
        why: String,
    },
    /// The step cannot be asked for like this; the text says what to do.
    Misused(String),
    /// The journal took no entry: the work is to stop, the result is too large, or it cannot write.
    Journal(Error),
}

impl StepError {
    pub(crate) fn into_agent_error(self) -> AgentError {
        match self {
            Self::Failed(error) => error,
            Self::Journal(error) => error.into(),
            Self::Mismatch { .. } | Self::Unreadable { .. } => {
                AgentError::journal_mismatch(self.to_string())
            }
            Self::OutcomeUnknown { .. } => AgentError::new("OutcomeUnknown", self.to_string()),
            Self::Misused(_) => AgentError::new("StepMisused", self.to_string()),
        }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::OutcomeUnknown { name, key, .. } => write!(
                f,
                "the side effect {name} ({key}) was begun before and nothing says how it ended"
            ),
            Self::Mismatch { asked, recorded } => write!(
                f,
                "the code asks for the step {asked} where the journal holds {recorded}: it is not \
                 the code that wrote it"
            ),
            Self::Unreadable { step, why } => {
                write!(f, "the result of the step {step} cannot be read: {why}")
            }
            Self::Misused(what) => f.write_str(what),
            Self::Journal(error) => error.fmt(f),
        }
    }
}

impl StdError for StepError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Failed(error) => error.source(),
            Self::Journal(error) => error.source(),
            Self::OutcomeUnknown { .. }
            | Self::Mismatch { .. }
            | Self::Unreadable { .. }
            | Self::Misused(_) => None,
        }
    }
}
