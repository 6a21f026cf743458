//! Whether a command could be executed, told without executing it.
//!
//! Finds the file as the system does when it executes one. What is in it, an interpreter it names
//! among that, is not looked at.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

/// Where a name is looked up when the environment has no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// That this process could execute `program` from `folder`, with that PATH.
///
/// # Errors
/// What executing it would say.
pub(super) fn check(program: &OsStr, path: Option<&OsStr>, folder: &Path) -> io::Result<()> {
    if program.as_bytes().contains(&b'/') {
        return may_execute(&folder.join(program));
    }
    let mut outcome = Err(Errno::ENOENT.into());
    for part in env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))) {
        match may_execute(&folder.join(part).join(program)) {
            Ok(()) => return Ok(()),
            // Only where no later one can be executed is that one what is wrong.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => outcome = Err(error),
            Err(_) => {}
        }
    }
    outcome
}

fn may_execute(file: &Path) -> io::Result<()> {
    // A folder may have the permission, which means another thing there.
    if !fs::metadata(file)?.is_file() {
        return Err(Errno::EACCES.into());
    }
    let may = |what| faccessat(AT_FDCWD, file, what, AtFlags::AT_EACCESS);
    may(AccessFlags::X_OK)?;
    // Landlock is not asked by whoever asks, only by whoever opens.
    match may(AccessFlags::R_OK) {
        Ok(()) => File::open(file).map(drop),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    /// A folder with `bin/tool`, which can be executed, `bin/text`, which cannot, and a folder
    /// `bin/folder`.
    fn folder() -> TempDir {
        let folder = TempDir::new().expect("a folder");
        let bin = folder.path().join("bin");
        fs::create_dir_all(bin.join("folder")).expect("made");
        for (name, mode) in [("tool", 0o755), ("text", 0o644)] {
            let file = bin.join(name);
            fs::write(&file, "#!/bin/sh\n").expect("written");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a mode");
        }
        folder
    }

    #[test]
    fn a_command_is_found_where_executing_it_finds_it() {
        use io::ErrorKind::{NotFound, PermissionDenied};
        let folder = folder();
        let absolute = folder.path().join("bin").display().to_string();
        let nowhere_first = format!("/no/such:{absolute}");
        let tool = format!("{absolute}/tool");
        for (program, path, expected) in [
            ("bin/tool", None, Ok(())),
            ("./bin/tool", Some("/no/such"), Ok(())),
            (&*tool, Some(""), Ok(())),
            ("tool", Some(&*nowhere_first), Ok(())),
            ("tool", Some("bin"), Ok(())),
            ("sh", None, Ok(())),
            ("tool", None, Err(NotFound)),
            ("tool", Some("/no/such:bin/tool"), Err(NotFound)),
            ("bin/no-tool", None, Err(NotFound)),
            ("bin/tool/below", None, Err(io::ErrorKind::NotADirectory)),
            ("bin/text", None, Err(PermissionDenied)),
            ("text", Some("bin:/no/such"), Err(PermissionDenied)),
            ("folder", Some("bin"), Err(PermissionDenied)),
        ] {
            let path = path.map(OsStr::new);
            let found = check(OsStr::new(program), path, folder.path());
            let found = found.map_err(|error| error.kind());
            assert_eq!(found, expected, "{program} in {path:?}");
        }
        // An empty part of PATH is the folder.
        let bin = folder.path().join("bin");
        check(OsStr::new("tool"), Some(OsStr::new("/usr/bin:")), &bin).expect("found");
    }
}
