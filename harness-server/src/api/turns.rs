//! Asks are made in turns of a few, and what one turn made goes out before the next begins.
//!
//! Many asks come with one read of a connection. Were all of them made before the first is written
//! to its worker, then callers, harness and workers would each do the whole of them while the
//! others have nothing to do. Durable runs take no part: the more of them come together, the fewer
//! commits they need.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Asks of one turn. Fewer cost more writes, more leave processors idle.
const ASKS: u32 = 16;

/// Turns an ask lets pass at most: those of a flood would else all be looked at again in each.
const PASSED_MAX: u32 = 4;

/// Whose turn it is; one for all connections.
#[derive(Default)]
pub(super) struct Turns(Mutex<Turn>);

#[derive(Default)]
struct Turn {
    number: u64,
    asks: u32,
}

impl Turns {
    /// Takes part in this turn, or lets all that can be written be written and takes part in a
    /// later one.
    pub(super) async fn join(&self) {
        for _ in 0..PASSED_MAX {
            let Err(full) = self.try_join() else {
                return;
            };
            // Everything else that is ready runs before this does again.
            tokio::task::yield_now().await;
            self.end(full);
        }
    }

    /// The number of the turn if it is full.
    fn try_join(&self) -> Result<(), u64> {
        let mut turn = self.lock();
        if turn.asks >= ASKS {
            return Err(turn.number);
        }
        turn.asks += 1;
        Ok(())
    }

    /// The first that comes back after a turn ends it.
    fn end(&self, number: u64) {
        let mut turn = self.lock();
        if turn.number == number {
            *turn = Turn {
                number: number + 1,
                asks: 0,
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn an_ask_beyond_the_turn_lets_what_is_ready_run_first() {
        let turns = Turns::default();
        for _ in 0..ASKS {
            assert_eq!(turns.try_join(), Ok(()));
        }
        let written = tokio::spawn(async {});
        turns.join().await;
        assert!(written.is_finished());
        for _ in 1..ASKS {
            assert_eq!(turns.try_join(), Ok(()));
        }
        assert!(turns.try_join().is_err());
    }

    #[test]
    fn an_ask_of_a_flood_is_made_although_every_turn_is_full() {
        let turns = Turns::default();
        let fill = || while turns.try_join().is_ok() {};
        let mut ask = pin!(turns.join());
        let mut cx = Context::from_waker(Waker::noop());
        let mut polls = 1;
        fill();
        while ask.as_mut().poll(&mut cx).is_pending() {
            polls += 1;
            // Others are quicker each time.
            let number = turns.lock().number;
            turns.end(number);
            fill();
        }
        assert_eq!(polls, PASSED_MAX + 1);
    }
}
