//! Whether the workers of a pool answer once and end, as the shortest worker does, or many times.
//!
//! Nothing in the dialect says so. A worker that is about to end must not be given another request,
//! and one that is not should be; so the first of a pool to answer are watched for a moment.

use std::time::Duration;

use tokio::sync::watch;

/// How long the first workers of a pool are watched after their first answer.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// What workers of a pool do after their first answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::supervisor) enum Habit {
    /// None has answered yet.
    #[default]
    Unknown,
    /// They end.
    AnswersOnce,
    /// They wait for more.
    AnswersMany,
}

impl Habit {
    /// How long a worker is waited for to end, after its first answer, before it is given more.
    pub(super) fn look(self, cancel_grace: Duration) -> Option<Duration> {
        match self {
            Self::Unknown => Some(FIRST_LOOK.min(cancel_grace)),
            // Ending may take long on a busy machine.
            Self::AnswersOnce => Some(cancel_grace),
            Self::AnswersMany => None,
        }
    }
}

/// The habit of a pool's workers, shared by those who speak to them. Cheap to clone.
#[derive(Clone)]
pub(in crate::supervisor) struct Habits(watch::Sender<Habit>);

impl Habits {
    pub(in crate::supervisor) fn new() -> Self {
        Self(watch::Sender::new(Habit::Unknown))
    }

    pub(super) fn get(&self) -> Habit {
        *self.0.borrow()
    }

    pub(super) fn set(&self, habit: Habit) {
        self.0
            .send_if_modified(|known| std::mem::replace(known, habit) != habit);
    }

    /// Waits until the workers are known to answer many times.
    pub(super) async fn until_many(&self) {
        let mut changes = self.0.subscribe();
        // The sender is here.
        drop(changes.wait_for(|habit| *habit == Habit::AnswersMany).await);
    }
}
