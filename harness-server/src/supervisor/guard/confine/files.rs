//! Restricting files, by Landlock.

use std::fs;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::supervisor::chain::chain;
use crate::supervisor::isolation::{Files, IsolationError};

const READ: &str = "sandbox.read";
const WRITE: &str = "sandbox.write";

/// The first that restricts truncating; without, a file outside could be emptied.
const NEEDED: ABI = ABI::V3;

/// What every program takes to be there.
const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

/// Allows `files` and the devices, and nothing else any more.
pub(super) fn restrict(files: &Files) -> Result<(), IsolationError> {
    let (read, all) = (AccessFs::from_read(NEEDED), AccessFs::from_all(NEEDED));
    let mut rules = empty().map_err(|error| {
        let reason = format!("it needs Landlock as of Linux 6.2: {}", chain(&error));
        IsolationError::new(READ, reason)
    })?;
    for path in &files.read {
        rules = allow(rules, READ, path, read)?;
    }
    for path in &files.write {
        rules = allow(rules, WRITE, path, all)?;
    }
    for device in DEVICES.map(Path::new) {
        if device.exists() {
            rules = allow(rules, WRITE, device, all)?;
        }
    }
    let restricted = rules.restrict_self();
    restricted.map_err(|error| IsolationError::new(READ, chain(&error)))?;
    Ok(())
}

/// Rules that allow nothing. Kernels that can do so (6.12) also keep the process from signalling
/// those outside, such as its guardian.
fn empty() -> Result<RulesetCreated, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED))?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::Signal)?
        .create()?;
    Ok(rules.set_compatibility(CompatLevel::HardRequirement))
}

fn allow(
    rules: RulesetCreated,
    setting: &str,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, IsolationError> {
    let refused = |reason: &str| {
        let reason = format!("{}: {reason}", path.display());
        IsolationError::new(setting, reason)
    };
    let kind = fs::metadata(path).map_err(|error| refused(&error.to_string()))?;
    let fd = PathFd::new(path).map_err(|error| refused(&chain(&error)))?;
    let access = if kind.is_dir() {
        access
    } else {
        access & AccessFs::from_file(NEEDED)
    };
    let added = rules.add_rule(PathBeneath::new(fd, access));
    added.map_err(|error| refused(&chain(&error)))
}
