//! The JSON Lines dialect: one process's standard input and output as a slot of the engine.
//!
//! An adapter on `engine::SlotHandle`, as a session is for an Attach call: it writes what the
//! slot's outbox holds and hands over what the process answers. Holds no slot state and decides
//! nothing about runs; when the process is replaced is `pool`'s affair.

mod call;
mod habit;
mod line;

use bytes::Buf;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{Duration, timeout};
use tracing::warn;

use crate::dispatch::{Frame, Offer, Reply};
use crate::engine::{Engine, Outgoing};
use crate::envelope::{Code, Failure, MESSAGE_BYTES, Request, beginning};
use crate::ids::Delivery;
use crate::pool::{Detached, Exit};
use crate::slot::End;

use super::child::{Order, Reporter};
use super::death;
use super::output::{Line, Lines, Tail};

use call::{Call, Work};
use habit::Habit;
pub(super) use habit::Habits;

/// How long after the end of its standard output a process may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a session is made with.
pub(super) struct Session {
    pub(super) engine: Engine,
    pub(super) offer: Offer,
    pub(super) per_request: bool,
    pub(super) cancel_grace: Duration,
    pub(super) habits: Habits,
    pub(super) tail: Tail,
    pub(super) reporter: Reporter,
    pub(super) orders: watch::Receiver<Order>,
    /// How the process has ended, once it has and all it wrote to standard error is read.
    pub(super) exit: watch::Receiver<Option<Exit>>,
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) stdout: Lines<pipe::Receiver>,
    pub(super) asked: u64,
    pub(super) answered: u64,
    /// What was no use of the process that was ended before it was asked, once it was.
    pub(super) useless: Option<String>,
}

/// How a session ended.
pub(super) enum Over {
    /// The process has no call any more.
    Detached(Detached),
    /// The process has ended.
    Ended,
}

/// What follows something that came.
enum Flow {
    On,
    /// The call is over; another one follows.
    Again,
    Over(Over),
}

/// What came.
enum Came {
    Frame(Option<Result<Outgoing, End>>),
    Line(Option<Line>),
    Written,
    Dismissed,
}

impl Session {
    /// Serves until the process has no call any more.
    pub(super) async fn run(&mut self) -> Over {
        loop {
            let mut call = Call::open(&self.engine, self.offer.clone());
            if self.asked == 0 {
                self.reporter.attached().await;
            }
            let flow = loop {
                let came = self.next(&mut call).await;
                match self.came(&mut call, came).await {
                    Flow::On => {}
                    over @ (Flow::Again | Flow::Over(_)) => break over,
                }
            };
            if let Flow::Over(over) = flow {
                return over;
            }
        }
    }

    async fn next(&mut self, call: &mut Call) -> Came {
        let (stdin, leaving) = (&mut self.stdin, call.leaving);
        let write = async {
            match (&mut call.work, stdin) {
                (Some(work), Some(stdin)) if work.unwritten.has_remaining() => {
                    stdin.write_all_buf(&mut work.unwritten).await
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            frame = call.outbox.next() => Came::Frame(frame),
            // A stream that breaks has ended.
            line = self.stdout.next() => Came::Line(line.unwrap_or_default()),
            written = write => {
                if written.is_err() {
                    // It reads nothing more; what becomes of it its output tells.
                    self.stdin = None;
                }
                Came::Written
            }
            _ = self.orders.wait_for(|order| *order >= Order::Dismiss), if !leaving => {
                Came::Dismissed
            }
        }
    }

    async fn came(&mut self, call: &mut Call, came: Came) -> Flow {
        match came {
            Came::Frame(Some(Ok(frame))) => self.frame(call, frame).await,
            Came::Frame(Some(Err(end))) => self.end(call, &end),
            Came::Frame(None) => Flow::Over(Over::Detached(Detached::Left)),
            Came::Line(Some(line)) => self.line(call, line).await,
            Came::Line(None) => self.ended(call).await,
            Came::Written => {
                // The end of its input tells a process that nothing more comes.
                if self.per_request {
                    self.stdin = None;
                }
                Flow::On
            }
            Came::Dismissed => {
                call.leave();
                self.left(call).await
            }
        }
    }

    async fn frame(&mut self, call: &mut Call, frame: Outgoing) -> Flow {
        match frame {
            Outgoing::Request {
                delivery, request, ..
            } => {
                call.outbox.let_go();
                self.request(call, delivery, &request);
                self.left(call).await
            }
            Outgoing::Drain(_) => {
                call.leaving = true;
                self.left(call).await
            }
            // Entries are sent again to full level workers only.
            Outgoing::Welcome(..)
            | Outgoing::Replayed(_)
            | Outgoing::Appended(_)
            | Outgoing::Heartbeat => Flow::On,
        }
    }

    /// Begins to write a request, or answers what cannot be asked.
    fn request(&mut self, call: &mut Call, delivery: Delivery, request: &Request) {
        if call.leaving {
            return call.reply(delivery, Reply::Declined);
        }
        let line = match line::request(delivery.run, &request.payload) {
            Ok(line) => line,
            Err(refusal) => return call.reply(delivery, Reply::Error(*refusal)),
        };
        self.asked += 1;
        self.tail.works_on(Some(delivery));
        call.work = Some(Work {
            delivery,
            unwritten: line.into(),
        });
    }

    /// How long the process is watched after the answer that it is about to give.
    fn look(&self) -> Option<Duration> {
        let first = self.answered == 0 && !self.per_request;
        self.habits.get().look(self.cancel_grace).filter(|_| first)
    }

    async fn line(&mut self, call: &mut Call, line: Line) -> Flow {
        let bytes = match line {
            Line::Whole(bytes) => bytes,
            Line::TooLong(bytes) => {
                let (bytes, limit) = (bytes as u64, self.engine.limits().frame_bytes());
                call.slot.frame(Frame::TooLarge { bytes, limit });
                return Flow::On;
            }
        };
        let Some(work) = &call.work else {
            call.leave();
            call.decline(&self.engine).await;
            let shown = line::shown(&bytes);
            call.broken(format!("wrote \"{shown}\" although it was asked nothing"));
            return Flow::On;
        };
        let delivery = work.delivery;
        match line::reply(delivery.run, &bytes) {
            Ok(reply) => self.replied(call, delivery, reply).await,
            // It may have died while it wrote.
            Err(_) if self.stdout.is_ended() => self.ended_after_output(call, delivery).await,
            Err(what) => {
                call.broken(what);
                Flow::On
            }
        }
    }

    async fn replied(&mut self, call: &mut Call, delivery: Delivery, reply: line::Reply) -> Flow {
        // What follows a reply follows nothing that was asked; it must not meet the next request.
        let more = self.stdout.has_more();
        // One that may end after its answer is given nothing that it would take along.
        let look = self.look();
        if more || self.per_request || look.is_some() {
            call.leave();
        }
        let reply = match reply {
            line::Reply::Error(message) => Reply::Error(agent_error(&message)),
            line::Reply::Value(value) => {
                let limit = self.engine.limits().payload_bytes.as_u64();
                let bytes = value.data.len() as u64;
                if bytes > limit {
                    call.slot.frame(Frame::TooLarge { bytes, limit });
                    return Flow::On;
                }
                Reply::Value(value)
            }
        };
        self.tail.works_on(None);
        call.work = None;
        call.reply(delivery, reply);
        self.answered += 1;
        self.reporter.answered().await;
        if more {
            let what = "wrote more after its reply";
            warn!(worker = self.offer.info.name, "{what}");
            call.broken(what.to_owned());
            return Flow::On;
        }
        match look {
            Some(time) => self.watch(call, time).await,
            None => self.left(call).await,
        }
    }

    /// Ends a call that takes nothing more and has nothing in hand.
    async fn left(&mut self, call: &mut Call) -> Flow {
        if !call.leaving || call.work.is_some() {
            return Flow::On;
        }
        call.decline(&self.engine).await;
        call.slot.frame(Frame::HalfClosed);
        Flow::Over(Over::Detached(Detached::Left))
    }

    /// Watches whether the process ends after its first answer.
    async fn watch(&mut self, call: &mut Call, time: Duration) -> Flow {
        let Flow::Over(left) = self.left(call).await else {
            return Flow::On;
        };
        let line = tokio::select! {
            line = self.stdout.next() => Some(line.unwrap_or_default()),
            () = tokio::time::sleep(time) => None,
            () = self.habits.until_many() => None,
            _ = self.orders.wait_for(|order| *order >= Order::Dismiss) => {
                return Flow::Over(left);
            }
        };
        match line {
            None => {
                self.habits.set(Habit::AnswersMany);
                Flow::Again
            }
            Some(None) => self.exits().await,
            Some(Some(_)) => Flow::Over(Over::Detached(Detached::Broke)),
        }
    }

    /// Standard output has ended, with nothing in hand.
    async fn exits(&mut self) -> Flow {
        match self.exit().await {
            Some(exit) => {
                if exit == Exit::Code(0) && self.answered == 1 {
                    self.habits.set(Habit::AnswersOnce);
                }
                Flow::Over(Over::Ended)
            }
            None => Flow::Over(Over::Detached(self.broke())),
        }
    }

    /// Standard output has ended.
    async fn ended(&mut self, call: &mut Call) -> Flow {
        call.leave();
        let Some(work) = &call.work else {
            call.decline(&self.engine).await;
            call.slot.frame(Frame::HalfClosed);
            return self.exits().await;
        };
        let delivery = work.delivery;
        if self.answered > 0 && self.exit().await == Some(Exit::Code(0)) {
            // It had answered and ended before it took this one.
            call.reply(delivery, Reply::Declined);
            call.slot.frame(Frame::HalfClosed);
            return self.exits().await;
        }
        self.ended_after_output(call, delivery).await
    }

    /// Standard output has ended within a reply, or with nothing of one.
    async fn ended_after_output(&mut self, call: &mut Call, delivery: Delivery) -> Flow {
        let Some(exit) = self.exit().await else {
            let what = "closed its standard output with a request in work";
            call.broken(what.to_owned());
            return Flow::On;
        };
        if *self.orders.borrow() >= Order::Terminate {
            call.slot.lost("the harness ended its process".to_owned());
        } else {
            let last = self.tail.last_of_run(delivery.run);
            let failure = death::failure(&self.offer.info.name, exit, &last);
            call.slot.died(failure);
        }
        Flow::Over(Over::Ended)
    }

    /// How the process ended; none when it goes on without its standard output.
    async fn exit(&mut self) -> Option<Exit> {
        let ended = self.exit.wait_for(Option::is_some);
        let exit = timeout(EXIT_TIMEOUT, ended).await.ok()?.ok()?;
        *exit
    }

    /// What it means that a rule is broken.
    fn broke(&self) -> Detached {
        match self.asked {
            0 => Detached::Useless,
            _ => Detached::Broke,
        }
    }

    /// The engine has ended the call.
    fn end(&mut self, call: &mut Call, end: &End) -> Flow {
        let idle = call.work.is_none();
        if let Some(undelivered) = call.outbox.abandon() {
            self.engine.undelivered(undelivered);
        }
        if let End::Broken(what) = end
            && self.asked == 0
        {
            self.useless = Some(what.clone());
        }
        let why = match end {
            End::DeadlineExceeded(_)
            | End::Cancelled(_)
            | End::NotAccepted(_)
            | End::StoreFailed
            | End::Superseded(_)
                if idle =>
            {
                return Flow::Again;
            }
            End::DeadlineExceeded(_)
            | End::Cancelled(_)
            | End::NotAccepted(_)
            | End::StoreFailed
            | End::Superseded(_) => Detached::Cancelled,
            End::HeartbeatsMissed
            | End::WrongAttempt { .. }
            | End::Violation(_)
            | End::Broken(_)
            | End::FrameTooLarge { .. }
            | End::Refused(_) => self.broke(),
            End::Closed | End::Idle | End::Leaving => Detached::Left,
        };
        Flow::Over(Over::Detached(why))
    }
}

/// The agent's error, which asking again does not mend.
fn agent_error(message: &str) -> Failure {
    let start = beginning(message, MESSAGE_BYTES);
    let mut failure = Failure::new(Code::AgentError, start);
    failure.truncated = start.len() < message.len();
    failure
}
