//! What the seeds have met, so that a simulation that meets nothing does not pass.

use std::collections::BTreeMap;
use std::fmt;

use harness_server::dispatch::{Action, Change, Note, Said};
use harness_server::envelope::Code;
use harness_server::slot::{End, Violation};

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    met: BTreeMap<String, u64>,
    counts: BTreeMap<&'static str, u64>,
}

/// What a few thousand seeds must meet: each end of a call, each answer, each note.
const EVERYTHING: [&str; 85] = [
    "answer value",
    "answer AgentError",
    "answer AttemptTimeout",
    "answer Busy",
    "answer Cancelled",
    "answer CrashLoop",
    "answer DeadlineExceeded",
    "answer InvalidReply",
    "answer InvalidRequest",
    "answer PayloadTooLarge",
    "answer Poisoned",
    "answer ProtocolViolation",
    "answer ShuttingDown",
    "answer UnknownAgent",
    "answer WorkerLost",
    "end cancelled",
    "end closed",
    "end deadline exceeded",
    "end foreign entry",
    "end frame too large",
    "end gap",
    "end heartbeats missed",
    "end idle",
    "end leaving",
    "end missed cancelled",
    "end missed deadline",
    "end missed superseded",
    "end not accepted",
    "end not yours",
    "end refused",
    "end second hello",
    "end step from minimal",
    "end superseded",
    "end unknown frame",
    "end window passed",
    "end wrong attempt",
    "drain",
    "drained while away",
    "durable: a failed attempt is resumed",
    "durable: a process dies",
    "durable: a request is not read",
    "durable: a run is cancelled",
    "durable: a step is not written",
    "durable: a worker resumes",
    "durable: append",
    "durable: deliver with steps",
    "durable: end attempt",
    "durable: end store failed",
    "durable: end superseded",
    "durable: ended AgentError",
    "durable: ended AttemptTimeout",
    "durable: ended Cancelled",
    "durable: ended DeadlineExceeded",
    "durable: ended InvalidRequest",
    "durable: ended JournalFull",
    "durable: ended Poisoned",
    "durable: ended WorkerLost",
    "durable: ended value",
    "durable: enqueue",
    "durable: enqueue and start",
    "durable: first step",
    "durable: load",
    "durable: not decided",
    "durable: note",
    "durable: reload",
    "durable: start Busy",
    "durable: start IdempotencyConflict",
    "durable: start ShuttingDown",
    "durable: start StoreUnavailable",
    "durable: start attempt",
    "durable: start UnknownAgent",
    "durable: started",
    "durable: started before",
    "durable: the harness is killed",
    "durable: the harness leaves",
    "grew",
    "note gave up",
    "note released",
    "note released unknown",
    "perished while away",
    "released in an older call",
    "released while away",
    "resumed",
    "resumed after its reply",
    "stayed away",
];

impl Tally {
    pub(crate) fn count(&mut self, action: &Action) {
        let what = match action {
            Action::Answer { answer, .. } => match &answer.outcome {
                Ok(_) => "answer value",
                Err(failure) => {
                    *self
                        .met
                        .entry(format!("answer {:?}", failure.code))
                        .or_default() += 1;
                    return;
                }
            },
            Action::End { end, .. } => name(end),
            Action::Note(Note::Released { .. }) => "note released",
            Action::Note(Note::ReleasedUnknown { .. }) => "note released unknown",
            Action::Note(Note::GaveUp { .. }) => "note gave up",
            Action::Note(Note::Failed { .. }) => "note failed",
            Action::Note(Note::Stale { .. }) => "note stale",
            Action::Note(Note::Away { .. }) => "note away",
            Action::Note(Note::Resumed { .. }) => "note resumed",
            Action::Welcome { .. } => "welcome",
            Action::Deliver { .. } => "deliver",
            Action::Acknowledge { .. } => "acknowledge",
            Action::Judge { .. } => "judge",
            Action::Grew { .. } => "grew",
            Action::Drain { .. } => "drain",
            Action::Write(_)
            | Action::Load { .. }
            | Action::Reload { .. }
            | Action::Started { .. }
            | Action::Decided { .. } => unreachable!("no run is durable here"),
        };
        self.meet(what);
    }

    pub(crate) fn meet(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// What Core does in a seed of durable runs.
    pub(crate) fn count_durable(&mut self, action: &Action) {
        match action {
            Action::Write(write) => match &write.change {
                Change::Enqueue { first: None, .. } => self.meet("durable: enqueue"),
                Change::Enqueue { .. } => self.meet("durable: enqueue and start"),
                Change::StartAttempt(_) => self.meet("durable: start attempt"),
                Change::Append(None) => self.meet("durable: append"),
                Change::Append(Some(_)) => self.meet("durable: first step"),
                Change::EndAttempt { .. } => self.meet("durable: end attempt"),
                Change::Note => self.meet("durable: note"),
                Change::Finish { .. } => {
                    let ended = write.entries.iter().find_map(|entry| match &entry.content {
                        Said::Ended(outcome) => Some(outcome),
                        Said::Asked(_) | Said::Content(_) => None,
                    });
                    match ended.expect("an end has its outcome") {
                        Ok(_) => self.meet("durable: ended value"),
                        Err(failure) => self.meet_code("ended", failure.code),
                    }
                }
            },
            Action::Deliver {
                replay: Some(_), ..
            } => self.meet("durable: deliver with steps"),
            Action::Started { run, started } => match started {
                Ok(known) if known != run => self.meet("durable: started before"),
                Ok(_) => self.meet("durable: started"),
                Err(failure) => self.meet_code("start", failure.code),
            },
            Action::Decided { failure, .. } if failure.is_some() => {
                self.meet("durable: not decided");
            }
            Action::Reload { .. } => self.meet("durable: reload"),
            Action::Load { .. } => self.meet("durable: load"),
            Action::End {
                end: End::StoreFailed,
                ..
            } => self.meet("durable: end store failed"),
            Action::End {
                end: End::Superseded(_),
                ..
            } => self.meet("durable: end superseded"),
            Action::Decided { .. }
            | Action::Deliver { .. }
            | Action::Answer { .. }
            | Action::End { .. }
            | Action::Note(_)
            | Action::Welcome { .. }
            | Action::Acknowledge { .. }
            | Action::Judge { .. }
            | Action::Grew { .. }
            | Action::Drain { .. } => {}
        }
    }

    fn meet_code(&mut self, how: &str, code: Code) {
        let met = self.met.entry(format!("durable: {how} {code:?}"));
        *met.or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        for (what, count) in &other.met {
            *self.met.entry(what.clone()).or_default() += count;
        }
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    fn of(&self, what: &str) -> u64 {
        let met = self.met.get(what).or_else(|| self.counts.get(what));
        met.copied().unwrap_or_default()
    }

    pub(crate) fn check_everything_was_met(&self) {
        let missing: Vec<&str> = EVERYTHING
            .into_iter()
            .filter(|what| self.of(what) == 0)
            .collect();
        assert!(missing.is_empty(), "the seeds never met {missing:?}");
    }
}

fn name(end: &End) -> &'static str {
    match end {
        End::Closed => "end closed",
        End::Idle => "end idle",
        End::DeadlineExceeded(_) => "end deadline exceeded",
        End::Cancelled(_) => "end cancelled",
        End::NotAccepted(_) => "end not accepted",
        End::HeartbeatsMissed => "end heartbeats missed",
        End::Leaving => "end leaving",
        End::StoreFailed => unreachable!("no run is durable here"),
        End::Superseded(_) => "end superseded",
        End::WrongAttempt { .. } => "end wrong attempt",
        End::FrameTooLarge { .. } => "end frame too large",
        End::Refused(_) => "end refused",
        End::Broken(_) => "end broken",
        End::Violation(Violation::SecondHello) => "end second hello",
        End::Violation(Violation::UnknownFrame) => "end unknown frame",
        End::Violation(Violation::BeforeWelcome) => "end before welcome",
        End::Violation(Violation::Gap { .. }) => "end gap",
        End::Violation(Violation::WindowPassed) => "end window passed",
        End::Violation(Violation::StepFromMinimal) => "end step from minimal",
        End::Violation(Violation::ForeignEntry) => "end foreign entry",
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = self.met.iter().map(|(what, count)| (what.as_str(), count));
        let counts = self.counts.iter().map(|(what, count)| (*what, count));
        for (what, count) in met.chain(counts) {
            writeln!(f, "{count:>12} {what}")?;
        }
        Ok(())
    }
}
