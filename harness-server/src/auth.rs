//! Who is calling, and what they may do.
//!
//! Owns the credentials that are good at present and what each principal may do. How a call names
//! one, and what a refusal looks like on the wire, is `api`'s affair.

mod process;
mod token;
mod workers;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::envelope::{Code, Failure};
use crate::ids::AgentKey;

pub use process::{Attendance, Death, InHand, Process, Told};
pub use token::Token;
pub use workers::NotItself;

use workers::Workers;

/// The target of the log of what was refused to whom.
pub const AUDIT: &str = "audit";

/// By which way a call comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A listener of the configuration: whoever shows no credential is anonymous. One that is
    /// shown must be good.
    Open,
    /// The socket of the processes of a pool: a token is needed.
    Processes,
}

/// Who is calling.
#[derive(Clone, Debug)]
pub enum Principal {
    /// Whoever shows no credential where none is asked for.
    Anonymous,
    /// The process of a pool that has this token.
    Process(Arc<Process>),
}

/// The credentials that are good at present; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    processes: Arc<Mutex<HashMap<Token, Arc<Process>>>>,
    workers: Workers,
}

/// A token that is good as long as this lives.
#[derive(Debug)]
pub struct Pass {
    auth: Auth,
    token: Token,
    process: Arc<Process>,
}

impl Auth {
    /// Makes the token of a process.
    #[must_use]
    pub fn issue(&self, process: Process) -> Pass {
        let process = process.among(&self.workers);
        let (token, process) = (Token::random(), Arc::new(process));
        self.lock().insert(token.clone(), process.clone());
        Pass {
            auth: self.clone(),
            token,
            process,
        }
    }

    /// Whom a call's `authorization` names.
    ///
    /// # Errors
    /// `Unauthenticated`: it names nobody, or there is none where one is needed.
    pub fn principal(
        &self,
        entry: Entry,
        authorization: Option<&[u8]>,
    ) -> Result<Principal, Box<Failure>> {
        let Some(authorization) = authorization else {
            return match entry {
                Entry::Open => Ok(Principal::Anonymous),
                Entry::Processes => Err(unauthenticated(
                    "this socket is for the processes of a pool: send the token of HARNESS_TOKEN \
                     as the metadata \"authorization: Bearer <token>\"",
                )),
            };
        };
        let token = Token::of_bearer(authorization).ok_or_else(|| {
            unauthenticated("authorization is no token of this harness: send \"Bearer <token>\"")
        })?;
        let process = self.lock().get(&token).cloned();
        process.map(Principal::Process).ok_or_else(|| {
            unauthenticated(
                "the token is not good here: it is that of another harness, or of a process that \
                 has ended",
            )
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Token, Arc<Process>>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// What the process sends.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Whose it is.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.auth.lock().remove(&self.token);
        self.process.is_gone();
    }
}

impl Principal {
    /// Whether it may use a gRPC service, by its full name; none is plain HTTP.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn may_call(&self, service: Option<&str>) -> Result<(), Box<Failure>> {
        const OF_PROCESSES: [&str; 2] = ["harness.v1.WorkerService", "harness.v1.RunService"];
        match self {
            Self::Anonymous => Ok(()),
            Self::Process(_) if service.is_some_and(|it| OF_PROCESSES.contains(&it)) => Ok(()),
            Self::Process(_) => Err(denied(format!(
                "{self} may call WorkerService and RunService, and nothing else"
            ))),
        }
    }

    /// Whether it may offer an agent.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn may_offer(&self, agent: &AgentKey) -> Result<(), Box<Failure>> {
        match self {
            Self::Anonymous => Ok(()),
            Self::Process(process) if process.agent() == agent => Ok(()),
            Self::Process(process) => Err(denied(format!(
                "{self} may offer agent \"{}\", and not \"{agent}\": name the worker's agent by \
                 HARNESS_AGENT",
                process.agent()
            ))),
        }
    }

    /// How runs call it.
    #[must_use]
    pub fn subject(&self) -> Arc<str> {
        match self {
            Self::Anonymous => "anonymous".into(),
            Self::Process(process) => format!("pool/{}", process.agent()).into(),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Process(process) => {
                write!(f, "process {} of pool {}", process.id(), process.agent())
            }
        }
    }
}

fn unauthenticated(message: &str) -> Box<Failure> {
    Box::new(Failure::new(Code::Unauthenticated, message))
}

fn denied(message: String) -> Box<Failure> {
    Box::new(Failure::new(Code::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ProcessId;

    fn issue(auth: &Auth, agent: &str) -> Pass {
        let (process, _told) = Process::new(AgentKey::new("", agent), ProcessId(1), false);
        auth.issue(process)
    }

    fn bearer(pass: &Pass) -> Vec<u8> {
        format!("Bearer {}", pass.token().text()).into_bytes()
    }

    #[test]
    fn nobody_in_particular_may_come_by_an_open_entry_only() {
        let auth = Auth::default();
        let anonymous = auth.principal(Entry::Open, None).expect("let in");
        assert!(matches!(anonymous, Principal::Anonymous));
        assert!(anonymous.may_call(Some("harness.v1.AdminService")).is_ok());
        assert!(anonymous.may_offer(&AgentKey::new("", "any")).is_ok());
        let refused = auth.principal(Entry::Processes, None).expect_err("refused");
        assert_eq!(refused.code, Code::Unauthenticated);
        assert!(refused.message.contains("HARNESS_TOKEN"), "{refused:?}");
    }

    #[test]
    fn a_token_is_good_by_every_entry_and_as_long_as_its_pass_lives() {
        let auth = Auth::default();
        let (pass, other) = (issue(&auth, "a"), issue(&auth, "b"));
        for entry in [Entry::Open, Entry::Processes] {
            let named = auth.principal(entry, Some(&bearer(&pass))).expect("good");
            assert_eq!(named.subject().as_ref(), "pool/a");
            let named = auth.principal(entry, Some(&bearer(&other))).expect("good");
            assert_eq!(named.subject().as_ref(), "pool/b");
        }
        let token = bearer(&pass);
        drop(pass);
        for entry in [Entry::Open, Entry::Processes] {
            let refused = auth.principal(entry, Some(&token)).expect_err("dead");
            assert_eq!(refused.code, Code::Unauthenticated);
        }
        assert!(auth.principal(Entry::Open, Some(&bearer(&other))).is_ok());
    }

    #[test]
    fn what_is_no_token_of_ours_is_refused_though_none_is_needed() {
        let auth = Auth::default();
        let pass = issue(&auth, "a");
        let text = pass.token().text();
        let mut near = text.clone();
        near.replace_range(..1, if text.starts_with('0') { "1" } else { "0" });
        for wrong in [
            text.clone(),
            format!("Basic {text}"),
            format!("Bearer {near}"),
            format!("Bearer {}", &text[1..]),
            format!("Bearer {text}0"),
            format!("Bearer  {text}"),
            "Bearer ".to_owned(),
            String::new(),
        ] {
            let refused = auth.principal(Entry::Open, Some(wrong.as_bytes()));
            let refused = refused.expect_err(&wrong);
            assert_eq!(refused.code, Code::Unauthenticated, "{wrong}");
            assert!(!refused.message.contains(&text), "it names the token");
        }
        let lower = format!("bearer {text}");
        assert!(auth.principal(Entry::Open, Some(lower.as_bytes())).is_ok());
    }

    #[test]
    fn a_process_may_offer_its_agent_and_ask_and_nothing_else() {
        let auth = Auth::default();
        let pass = issue(&auth, "a");
        let process = Principal::Process(pass.process().clone());
        assert!(process.may_offer(&AgentKey::new("", "a")).is_ok());
        for other in [AgentKey::new("", "b"), AgentKey::new("other", "a")] {
            let refused = process.may_offer(&other).expect_err("refused");
            assert_eq!(refused.code, Code::PermissionDenied);
            assert!(refused.message.contains("\"a\""), "{refused:?}");
        }
        for service in ["harness.v1.WorkerService", "harness.v1.RunService"] {
            assert!(process.may_call(Some(service)).is_ok());
        }
        for service in [Some("harness.v1.AdminService"), Some(""), None] {
            let refused = process.may_call(service).expect_err("refused");
            assert_eq!(refused.code, Code::PermissionDenied);
        }
    }
}
