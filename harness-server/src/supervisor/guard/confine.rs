//! Taking on the isolation, each part by the process it is for.

use crate::supervisor::isolation::{Isolation, IsolationError};
use crate::supervisor::wire::Refusal;

impl From<IsolationError> for Refusal {
    fn from(error: IsolationError) -> Self {
        Self::Isolation(error)
    }
}

/// Everything but what would keep this process itself from executing the command.
pub(super) fn take_on(_isolation: &Isolation) -> Result<(), IsolationError> {
    Ok(())
}

/// The rest, right before it does.
pub(super) fn take_on_last(_isolation: &Isolation) -> Result<(), IsolationError> {
    Ok(())
}
