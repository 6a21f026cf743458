//! What the integration tests stand on: real processes, each in a folder of its own, on ports the
//! system gives, killed when the test ends and heard when it fails.
//!
//! - [`eventually`]: wait for a condition, with a bound.
//! - [`Process`]: a child process whose output is kept; [`Finished`] is one that has ended.
//! - [`Harness`]: `harness serve`, and commands that talk to it.
//! - [`Worker`]: a worker of the examples, of `examples/python`, or the [`Worker::puppet`], an
//!   agent that does what its request says, in Rust and, at both levels, in Python.
//! - [`Asker`]: a caller over the bare wire, which holds every ask to its deadline.
//! - [`Proxy`]: between a peer and the harness, made to misbehave; [`Port`]: a port for a harness
//!   that comes later.
//! - [`provider`]: a model provider over HTTP with the faults of real ones.
//! - [`scripted`]: a harness that ends calls as the test says.
//! - [`http2`]: frames by hand.
//! - [`guarded`]: worker processes as pools start them, and finding what is left of them.
//! - [`durable`]: durable runs over the bare wire; [`step_log`]: what workers did under a crash test.
//! - [`raw`]: bare protocol peers over the generated stubs, and a harness in the test's process.
//!
//! ```no_run
//! use harness_tests::{Harness, Worker};
//!
//! let harness = Harness::start();
//! let _echo = Worker::start(&harness, "echo");
//! let asked = harness.cli(["ask", "echo", "hello"]);
//! assert_eq!(asked.code, Some(0), "{asked}");
//! assert_eq!(asked.stdout, "hello\n");
//! ```

mod asker;
pub mod durable;
pub mod guarded;
mod harness;
pub mod http2;
mod logs;
mod loopback;
mod port;
mod process;
mod programs;
pub mod provider;
mod proxy;
mod proxy_frames;
mod proxy_way;
pub mod raw;
pub mod scripted;
pub mod step_log;
mod wait;
mod worker;

pub use asker::{Answer, Asker, Asking, Stream, error_of};
pub use harness::{Harness, HarnessBuilder};
pub use logs::log_to_stderr;
pub use port::Port;
pub use process::{Finished, Process, Signal};
pub use programs::{command, program, python, source};
pub use proxy::{Proxy, Way};
pub use wait::{BOUND, eventually, eventually_async};
pub use worker::{Worker, WorkerBuilder};
