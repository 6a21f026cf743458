//! What each process of a pool is given: what it is started with, and of the gRPC dialect what it
//! dials back to and with.
//!
//! Owns the socket of the pool.

use std::path::PathBuf;
use std::sync::Arc;

use crate::auth::Auth;
use crate::config::{DialBack, Pool};
use crate::engine::Engine;
use crate::ids::{AgentKey, ProcessId};
use crate::pool::Dialect;

use super::door::{Door, Serve};
use super::grpc::Dialled;
use super::isolation::User;
use super::launch::{LaunchError, launch};
use super::process::Launch;

/// What keepers start processes with.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) engine: Engine,
    pub(super) auth: Auth,
    pub(super) guard: PathBuf,
    pub(super) tcp: Option<String>,
    pub(super) serve: Serve,
}

/// Prepares the processes of one pool.
pub(super) struct Preparing {
    around: Surroundings,
    /// The socket its processes dial back to, once one of them does.
    door: Option<Arc<Door>>,
}

impl Preparing {
    pub(super) fn new(around: Surroundings) -> Self {
        Self { around, door: None }
    }

    /// What a process is started with, and of the gRPC dialect what it dials back with.
    pub(super) fn prepare(
        &mut self,
        whose: (&AgentKey, ProcessId),
        config: &Pool,
    ) -> Result<(Launch, Option<Dialled>), LaunchError> {
        let mut launch = launch(config, &self.around.guard)?;
        let dialled = match config.dialect {
            Dialect::Jsonl => None,
            Dialect::Grpc => {
                let door = self.door(config.address, launch.isolation.user.as_ref())?;
                let address = match &door {
                    Some(door) => door.address(),
                    None => self.around.tcp.clone().ok_or(LaunchError::NoTcp)?,
                };
                let dialled = Dialled::new(&self.around.auth, whose, config, address, door);
                launch.env.extend(dialled.environment());
                Some(dialled)
            }
        };
        Ok((launch, dialled))
    }

    /// The socket to dial; none where that is a TCP address.
    fn door(
        &mut self,
        address: DialBack,
        user: Option<&User>,
    ) -> Result<Option<Arc<Door>>, LaunchError> {
        match address {
            DialBack::Tcp => return Ok(None),
            DialBack::Unix => {}
        }
        let door = match self.door.take().filter(|door| door.is_for(user)) {
            Some(door) => door,
            None => Arc::new(Door::open(user, &self.around.serve).map_err(LaunchError::Door)?),
        };
        self.door = Some(door.clone());
        Ok(Some(door))
    }
}
