//! The map: which slot is free, who waits for a slot, and who waits for which answer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use harness_proto::v1::attach_response::Frame;
use harness_proto::v1::{AttachResponse, Payload, Request};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// The way to a slot's worker.
pub(super) type ToWorker = mpsc::Sender<Result<AttachResponse, Status>>;

/// Who is answered.
pub(super) enum Asker {
    /// A unary call.
    One(oneshot::Sender<Payload>),
    /// An ask of many, by its tag.
    Tagged(u64, mpsc::Sender<(u64, Payload)>),
}

/// All slots and asks.
#[derive(Clone, Default)]
pub(super) struct Relay(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u32,
    free: Vec<(u64, ToWorker)>,
    waiting: VecDeque<(u32, Payload, Asker)>,
    working: HashMap<u32, (u64, ToWorker, Asker)>,
}

impl Relay {
    /// Sends an ask to a free slot, or keeps it until one is. Gives its number.
    pub(super) fn ask(&self, payload: Payload, asker: Asker) -> u32 {
        let mut state = self.lock();
        state.next = state.next.wrapping_add(1);
        let id = state.next;
        match state.free.pop() {
            Some(slot) => state.send(id, payload, slot, asker),
            None => state.waiting.push_back((id, payload, asker)),
        }
        id
    }

    /// A slot that can take an ask.
    pub(super) fn free(&self, slot: u64, worker: ToWorker) {
        self.lock().next_for((slot, worker));
    }

    /// A worker's answer.
    pub(super) fn answer(&self, id: u32, payload: Payload) {
        let mut state = self.lock();
        let Some((slot, worker, asker)) = state.working.remove(&id) else {
            return;
        };
        state.next_for((slot, worker));
        drop(state);
        match asker {
            // An asker that is gone needs no answer.
            Asker::One(answer) => drop(answer.send(payload)),
            Asker::Tagged(tag, answers) => drop(answers.try_send((tag, payload))),
        }
    }

    /// Ends the call of the slot that works on an ask; the asker sees its end.
    pub(super) fn end(&self, id: u32) {
        if let Some((_, worker, _)) = self.lock().working.remove(&id) {
            drop(worker.try_send(Err(Status::cancelled("ended"))));
        }
    }

    /// [`Relay::end`] of every ask that is worked on.
    pub(super) fn end_all(&self) {
        let working: Vec<_> = self.lock().working.keys().copied().collect();
        for id in working {
            self.end(id);
        }
    }

    /// A slot's call is gone, and what it worked on with it.
    pub(super) fn gone(&self, slot: u64) {
        let mut state = self.lock();
        state.free.retain(|(free, _)| *free != slot);
        state.working.retain(|_, (working, _, _)| *working != slot);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_for(&mut self, slot: (u64, ToWorker)) {
        match self.waiting.pop_front() {
            Some((id, payload, asker)) => self.send(id, payload, slot, asker),
            None => self.free.push(slot),
        }
    }

    fn send(&mut self, id: u32, payload: Payload, slot: (u64, ToWorker), asker: Asker) {
        let request = Request {
            attempt: id,
            payload: Some(payload),
            ..Request::default()
        };
        let frame = AttachResponse {
            frame: Some(Frame::Request(request)),
        };
        // A slot holds one request, so its channel has room; a closed one is told by `gone`.
        drop(slot.1.try_send(Ok(frame)));
        self.working.insert(id, (slot.0, slot.1, asker));
    }
}
