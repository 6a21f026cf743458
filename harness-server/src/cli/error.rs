//! Why a command failed, its exit code, and the one line that tells it.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use harness_server::{ConfigError, ListenError, ServerError};
use worker_sdk::{Error as SdkError, ErrorKind};

use super::program;
use crate::shutdown::Stop;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// What was given cannot be used; the text says what can.
    #[error("{0}")]
    Usage(String),
    /// The configuration file cannot be used.
    #[error("{}", file.display())]
    Config { file: PathBuf, source: ConfigError },
    /// A harness cannot start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The harness answered with an error.
    #[error(transparent)]
    Sdk(SdkError),
    /// Nothing answers there; without a source: not in time.
    #[error("no harness answers at {address}")]
    Unreachable {
        address: String,
        source: Option<SdkError>,
    },
    /// A signal came first.
    #[error("stopped by {signal}: {what}")]
    Stopped { signal: Stop, what: &'static str },
    /// The demo did not show what it is there to show.
    #[error("{0}")]
    Demo(String),
    /// Nothing is left to tell; the exit code is.
    #[error("told already")]
    Told(u8),
    /// The system refuses.
    #[error("{what}")]
    Io { what: String, source: io::Error },
}

impl CliError {
    pub(super) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    /// A second signal came while the first one's work was being finished.
    pub(super) fn cut_off(signal: Stop) -> Self {
        let what = "what was in work is cut off";
        Self::Stopped { signal, what }
    }

    /// The error of a call to the harness at `address`.
    pub(super) fn of_call(address: &str, error: SdkError) -> Self {
        match error.kind() {
            ErrorKind::Unreachable => Self::Unreachable {
                address: address.to_owned(),
                source: Some(error),
            },
            _ => Self::Sdk(error),
        }
    }

    /// The outermost cause that its line does not tell.
    pub(super) fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Sdk(error) => error.source(),
            Self::Unreachable { source, .. } => source.as_ref()?.source(),
            Self::Usage(_)
            | Self::Config { .. }
            | Self::Server(_)
            | Self::Stopped { .. }
            | Self::Demo(_)
            | Self::Told(_)
            | Self::Io { .. } => None,
        }
    }

    /// The exit code, as `harness --help` lists them.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Config { .. } => 2,
            Self::Server(ServerError::Listen(
                ListenError::Address(_) | ListenError::NotLoopback(_),
            )) => 2,
            Self::Server(ServerError::Pools(_)) => 2,
            Self::Server(ServerError::Listen(_) | ServerError::Store { .. })
            | Self::Demo(_)
            | Self::Io { .. } => 1,
            Self::Sdk(error) => exit_code_of(error),
            Self::Unreachable { .. } => 3,
            Self::Told(code) => *code,
            Self::Stopped { signal, .. } => signal.exit_code(),
        }
    }

    /// The code in JSON: the protocol's, or one of this program's own.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Usage(_) => "USAGE",
            Self::Config { .. } => "CONFIG",
            Self::Server(ServerError::Listen(_)) => "LISTEN",
            Self::Server(ServerError::Pools(_)) => "POOL",
            Self::Server(ServerError::Store { .. }) => "STORE",
            Self::Sdk(error) => error.code_name(),
            Self::Unreachable { .. } => "UNREACHABLE",
            Self::Stopped { .. } => "STOPPED",
            Self::Demo(_) => "DEMO",
            Self::Told(_) => "TOLD",
            Self::Io { .. } => "IO",
        }
    }

    /// The line a person reads: what happened and what to do.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Sdk(error) => sdk_line(error),
            Self::Unreachable { address, .. } => {
                format!("{self}; start one with: {}", start_command(address))
            }
            // The harness's own texts stand alone; those of the system need what they are about.
            Self::Config {
                source: source @ ConfigError::Read { .. },
                ..
            } => chain(source),
            Self::Usage(_)
            | Self::Config { .. }
            | Self::Server(_)
            | Self::Stopped { .. }
            | Self::Demo(_)
            | Self::Told(_)
            | Self::Io { .. } => chain(self),
        }
    }
}

/// The exit code of an error of an ask.
pub(super) fn exit_code_of(error: &SdkError) -> u8 {
    match error.kind() {
        ErrorKind::InvalidAddress => 2,
        ErrorKind::Transport | ErrorKind::Unreachable => 3,
        ErrorKind::DeadlineExceeded => 4,
        _ => 1,
    }
}

/// What of an SDK error stands for itself, and the retry it allows.
fn sdk_line(error: &SdkError) -> String {
    let mut line = match error.agent_type() {
        "" => error.message().to_owned(),
        agent_type => format!("{agent_type}: {}", error.message()),
    };
    if let Some(wait) = error.retry_after() {
        line.push_str(&format!("; ask again in {wait:?}"));
    }
    line
}

/// The command that starts a harness where none answered.
fn start_command(address: &str) -> String {
    let program = program::called_as();
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    if address == harness_server::config::DEFAULT_ADDRESS {
        format!("{program} serve")
    } else {
        format!("{program} serve --listen {}", program::quoted(address))
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
