//! Whom an action is for: found under the lock, told without it.

use crate::dispatch::{Action, trim};

use super::{Effect, Outbox, State, Undelivered};

impl State {
    /// Finds whom an action is for; none when that one is gone.
    pub(super) fn address(&mut self, action: Action) -> Option<Effect> {
        match action {
            Action::Welcome { slot, .. }
            | Action::Deliver { slot, .. }
            | Action::Acknowledge { slot, .. }
            | Action::Drain { slot, .. } => self
                .outboxes
                .get(&slot)
                .map(|outbox| Effect::To(outbox.clone(), action)),
            Action::End { slot, .. } => {
                let outbox = self.outboxes.remove(&slot);
                trim(&mut self.outboxes);
                outbox.map(|outbox| Effect::To(outbox, action))
            }
            Action::Answer { run, answer } => {
                let caller = self.callers.remove(&run);
                trim(&mut self.callers);
                caller.map(|caller| Effect::Answer(caller, run, answer))
            }
            Action::Write(write) => {
                self.staged.push(write);
                None
            }
            Action::Load { run, replayed } => Some(Effect::Load(run, replayed)),
            Action::Reload { run } => Some(Effect::Reload(run)),
            Action::Started { run, started } => self
                .starters
                .remove(&run)
                .map(|starter| Effect::Started(starter, started)),
            Action::Decided { run, failure } => {
                let awaited = self.awaited.remove(&run);
                trim(&mut self.awaited);
                awaited.map(|awaited| Effect::Decided(awaited, failure))
            }
            Action::Grew { run } => self.watches.get(&run).cloned().map(Effect::Grew),
            Action::Judge { .. } => Some(Effect::Judge(action)),
            Action::Note(note) => Some(Effect::Note(note)),
        }
    }
}

/// Gives a request back that came after the end of its call.
pub(super) fn tell(outbox: &Outbox, action: Action) -> Option<Undelivered> {
    match action {
        Action::Welcome { slot, resumed } => outbox.welcome(slot, resumed),
        Action::Deliver {
            worker,
            delivery,
            lease,
            request,
            deadline,
            window,
            replay,
            ..
        } => {
            let to = Undelivered {
                worker,
                delivery,
                lease,
            };
            return outbox.request(to, request, (deadline, window), replay);
        }
        Action::Acknowledge { delivery, seq, .. } => outbox.acknowledge(delivery, seq),
        Action::Drain { reason, .. } => outbox.drain(reason),
        Action::End { end, .. } => outbox.end(end),
        Action::Answer { .. }
        | Action::Write(_)
        | Action::Load { .. }
        | Action::Reload { .. }
        | Action::Started { .. }
        | Action::Decided { .. }
        | Action::Grew { .. }
        | Action::Judge { .. }
        | Action::Note(_) => {}
    }
    None
}
