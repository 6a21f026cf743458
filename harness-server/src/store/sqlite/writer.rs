//! The thread that writes: takes the steps that wait, commits them together, tells of each.

use rusqlite::{Connection, TransactionBehavior};

use super::super::{Done, Step, StoreError, Written};
use super::checkpoints::{Checkpoints, Log};
use super::place::Place;
use super::queue::Queue;
use super::{failed, steps};

/// Runs until the queue is closed and empty.
pub(super) fn run(
    mut connection: Connection,
    place: &Place,
    queue: &Queue,
    checkpoints: &Checkpoints,
) {
    let mut log = Log::new(checkpoints, &connection);
    while let Some(group) = queue.take() {
        let (steps, told): (Vec<Step>, Vec<Done>) = group.into_iter().unzip();
        let outcomes = match place.check() {
            Ok(()) => write(&mut connection, &steps),
            Err(error) => steps.iter().map(|_| Err(error.clone())).collect(),
        };
        drop(steps);
        for (done, outcome) in told.into_iter().zip(outcomes) {
            done(outcome);
        }
        log.committed(&connection);
    }
}

fn write(connection: &mut Connection, steps: &[Step]) -> Vec<Result<Written, StoreError>> {
    match commit(connection, steps) {
        Ok(outcomes) => outcomes,
        // A step that does not fit must not take along those that do.
        Err(StoreError::Full) if steps.len() > 1 => steps
            .iter()
            .map(|step| {
                commit(connection, std::slice::from_ref(step))
                    .and_then(|mut outcomes| outcomes.pop().unwrap_or(Ok(Written::Done)))
            })
            .collect(),
        Err(error) => steps.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Writes all steps in one commit. A step whose fence does not hold writes nothing and hinders no
/// other.
fn commit(
    connection: &mut Connection,
    steps: &[Step],
) -> Result<Vec<Result<Written, StoreError>>, StoreError> {
    let mut all = || {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let outcomes = steps
            .iter()
            .map(|step| match steps::write(&transaction, step)? {
                Some(written) => Ok(Ok(written)),
                None => Ok(Err(StoreError::Fenced)),
            })
            .collect::<rusqlite::Result<Vec<_>>>()?;
        transaction.commit()?;
        Ok(outcomes)
    };
    all().map_err(|error: rusqlite::Error| failed(&error))
}
