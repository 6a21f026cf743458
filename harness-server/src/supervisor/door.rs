//! The Unix socket that the processes of a pool dial back to.
//!
//! Owns its folder, which is 0700 and holds nothing else, and whose they are: those of the user that
//! the processes run as. A harness that was killed leaves its folders; the next one removes those
//! that were its own user's. Who is let in is `auth`'s affair, and what is said on it `api`'s.

use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::isolation::User;

/// Longer paths do not fit the address of a socket everywhere.
const PATH_BYTES: usize = 100;

/// What the names of the folders begin with.
const FOLDER: &str = "harness-pool-";

/// The name of the socket in its folder.
const SOCKET: &str = "s";

/// Serves a socket until it is cancelled.
pub type Serve = Arc<dyn Fn(UnixListener, CancellationToken) + Send + Sync>;

/// A socket that is served. Dropping it ends that, but not what is connected, and removes it.
#[derive(Debug)]
pub(super) struct Door {
    place: Place,
    user: Option<User>,
    #[expect(dead_code, reason = "ends the serving when dropped")]
    stop: DropGuard,
}

/// Where a socket is; gone when dropped.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    socket: PathBuf,
    /// The folder, locked before its socket is there: the lock goes with the harness, however it
    /// ends.
    _lock: File,
}

impl Door {
    /// Opens one for processes that run as `user`, or as the harness when none. Must be called in
    /// a tokio runtime.
    pub(super) fn open(user: Option<&User>, serve: &Serve) -> io::Result<Self> {
        let (place, listener) = bind(user)?;
        let stop = CancellationToken::new();
        serve(listener, stop.clone());
        Ok(Self {
            place,
            user: user.cloned(),
            stop: stop.drop_guard(),
        })
    }

    /// Whether it is for processes that run as this user.
    pub(super) fn is_for(&self, user: Option<&User>) -> bool {
        self.user.as_ref() == user
    }

    /// How it is dialled.
    pub(super) fn address(&self) -> String {
        format!("unix:{}", self.place.socket.display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whoever removed them before has done our work.
        drop(fs::remove_file(&self.socket));
        drop(fs::remove_dir(&self.folder));
    }
}

/// Whether a socket for this user can be made here.
pub(super) fn check(user: Option<&User>) -> io::Result<()> {
    bind(user).map(drop)
}

fn bind(user: Option<&User>) -> io::Result<(Place, UnixListener)> {
    let places = [env::temp_dir(), PathBuf::from("/tmp")];
    let mut why = Vec::new();
    for place in &places {
        match bind_in(place, user) {
            Ok(bound) => return Ok(bound),
            Err(error) => why.push(format!("in {}: {error}", place.display())),
        }
    }
    why.dedup();
    Err(io::Error::other(format!(
        "{}; TMPDIR must name a folder that can be written",
        why.join("; ")
    )))
}

fn bind_in(place: &Path, user: Option<&User>) -> io::Result<(Place, UnixListener)> {
    let place = std::path::absolute(place)?;
    let folder = place.join(format!(
        "{FOLDER}{}",
        &Uuid::new_v4().simple().to_string()[..16]
    ));
    let socket = folder.join(SOCKET);
    if socket.as_os_str().len() >= PATH_BYTES {
        return Err(io::Error::other("its path is too long for a socket"));
    }
    if user.is_some() && !place.ancestors().all(is_open) {
        return Err(io::Error::other("not every user may enter it"));
    }
    // It must not be there: nobody else can have made it.
    DirBuilder::new().mode(0o700).create(&folder)?;
    let lock = File::open(&folder)?;
    lock.lock()?;
    sweep(&place, lock.metadata()?.uid());
    let place = Place {
        socket,
        folder,
        _lock: lock,
    };
    let listener = UnixListener::bind(&place.socket)?;
    fs::set_permissions(&place.socket, Permissions::from_mode(0o600))?;
    if let Some(user) = user {
        for path in [&place.socket, &place.folder] {
            chown(path, Some(user.uid), Some(user.gid))?;
        }
    }
    Ok((place, listener))
}

/// Removes the folders of harnesses of this user that were killed. What cannot be removed stays.
fn sweep(place: &Path, uid: u32) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    for entry in entries.filter(|it| it.file_name().to_string_lossy().starts_with(FOLDER)) {
        let folder = entry.path();
        let is_ours = fs::symlink_metadata(&folder).is_ok_and(|it| it.is_dir() && it.uid() == uid);
        // One without its socket is being made.
        let socket = folder.join(SOCKET);
        let is_made = fs::symlink_metadata(&socket).is_ok_and(|it| it.file_type().is_socket());
        if is_ours && is_made && is_left(&folder) {
            drop(fs::remove_file(&socket));
            drop(fs::remove_dir(&folder));
        }
    }
}

/// Whether no harness holds a folder.
fn is_left(folder: &Path) -> bool {
    File::open(folder).is_ok_and(|folder| folder.try_lock().is_ok())
}

/// Whether every user may pass through a folder.
fn is_open(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|it| it.permissions().mode() & 0o001 != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tempfile::TempDir;

    use super::*;

    #[tokio::test]
    async fn a_door_is_its_users_alone_and_leaves_nothing() {
        let served = Arc::new(Mutex::new(None));
        let keep = served.clone();
        let serve: Serve = Arc::new(move |listener, stop| {
            *keep.lock().expect("a lock") = Some((listener, stop));
        });
        let own = Door::open(None, &serve).expect("opened");
        let root = fs::metadata(&own.place.folder).expect("there").uid() == 0;
        let user = root.then(|| User {
            name: "nobody in particular".to_owned(),
            uid: 61_020,
            gid: 61_021,
            groups: vec![61_021],
        });
        let door = Door::open(user.as_ref(), &serve).expect("opened");
        assert!(door.is_for(user.as_ref()));
        assert_eq!(door.is_for(None), !root);
        let address = door.address();
        let socket = PathBuf::from(address.strip_prefix("unix:").expect("a unix address"));
        assert!(socket.as_os_str().len() < PATH_BYTES && socket.is_absolute());
        let folder = socket.parent().expect("a folder").to_owned();
        for (path, mode) in [(&folder, 0o700), (&socket, 0o600)] {
            let told = fs::metadata(path).expect("there");
            assert_eq!(told.permissions().mode() & 0o777, mode, "{path:?}");
            if let Some(user) = &user {
                assert_eq!((told.uid(), told.gid()), (user.uid, user.gid), "{path:?}");
            }
        }
        tokio::net::UnixStream::connect(&socket)
            .await
            .expect("taken");
        drop(door);
        let (_listener, stop) = served.lock().expect("a lock").take().expect("served");
        assert!(stop.is_cancelled());
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn what_a_killed_harness_has_left_is_removed_and_what_a_living_one_holds_is_not() {
        let temp = TempDir::new().expect("a folder");
        let (held, _listener) = bind_in(temp.path(), None).expect("bound");
        let (dead, listener) = bind_in(temp.path(), None).expect("bound");
        let (folder, mut foreign) = (dead.folder.clone(), temp.path().to_owned());
        foreign.push(format!("{FOLDER}notes"));
        fs::create_dir(&foreign).expect("made");
        fs::write(foreign.join(SOCKET), "no socket").expect("written");
        // A harness that is killed closes what it holds and removes nothing.
        let dead = std::mem::ManuallyDrop::new(dead);
        dead._lock.unlock().expect("unlocked");
        drop(listener);
        assert!(folder.exists());
        let (_next, _listener) = bind_in(temp.path(), None).expect("bound");
        assert!(!folder.exists());
        assert!(held.socket.exists() && foreign.join(SOCKET).exists());
    }

    #[tokio::test]
    async fn a_place_that_cannot_hold_it_is_told_with_its_reason() {
        let temp = TempDir::new().expect("a folder");
        let long = temp.path().join("x".repeat(PATH_BYTES));
        fs::create_dir(&long).expect("made");
        for (place, part) in [
            (temp.path().join("none"), "No such file"),
            (long, "too long"),
        ] {
            let refused = bind_in(&place, None).expect_err("refused").to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
