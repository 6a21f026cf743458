//! What an agent records of its work, and where to.
//!
//! Owns the [`Journal`] a context writes to and reads its past from, the entries in it and, below,
//! the rules by which recorded steps are matched with what the code asks for. The Attach call of a
//! worker is one, [`Memory`] for tests another, and with the feature `local-journal` a file
//! (`Local`). It does not run the work of a step: that is [`crate::Context::step`]'s affair.

mod entry;
mod ledger;
#[cfg(feature = "local-journal")]
mod local;
mod memory;
mod step_error;

use std::future::Future;
use std::pin::Pin;

use crate::error::Error;

pub(crate) use entry::Outcome;
pub use entry::{Entry, Recorded, Step, Usage};
pub(crate) use ledger::{Asked, Effect, Id, Ledger};
#[cfg(feature = "local-journal")]
pub use local::{Attempt, Local};
pub use memory::Memory;
pub use step_error::StepError;

/// An append on its way; see [`Journal::append`].
pub type Appending<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// The journal of one attempt: what earlier attempts of the run recorded, and where this one
/// records.
///
/// A context of [`crate::testing`] takes any; a worker's writes to the harness, and that of
/// `Attempt` to its file.
pub trait Journal: Send + Sync + 'static {
    /// The steps and the usage that earlier attempts of the run recorded, oldest first. Asked once,
    /// at the attempt's first step.
    fn replay(&self) -> Vec<Recorded>;

    /// Adds an entry. Returns once it will not be lost any more when it is a step; other entries
    /// may be only on their way, in the order they were given.
    ///
    /// # Errors
    /// `Cancelled` when the work is to stop, `PayloadTooLarge` when the entry is over the journal's
    /// limit, `StoreUnavailable` when it cannot write.
    fn append(&self, entry: Entry) -> Appending<'_>;
}
