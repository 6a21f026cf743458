//! The Unix socket that the processes of a pool dial back to.
//!
//! Owns its folder, which is 0700 and holds nothing else, and whose they are: those of the user that
//! the processes run as. Who is let in is `auth`'s affair, and what is said on it `api`'s.

use std::env;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::isolation::User;

/// How the folders are called, before some random digits.
const NAME: &str = "harness-";
const NAME_DIGITS: usize = 16;

/// How the sockets in them are.
const SOCKET: &str = "s";

/// Longer paths do not fit the address of a socket everywhere.
const PATH_BYTES: usize = 100;

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

impl Place {
    fn at(folder: PathBuf) -> Self {
        Self {
            socket: folder.join(SOCKET),
            folder,
        }
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
    let mut refused = Vec::new();
    for place in &places {
        match folder(place, user).and_then(|folder| bind_at(&folder, user)) {
            Ok(bound) => return Ok(bound),
            Err(error) => refused.push(format!("in {}: {error}", place.display())),
        }
    }
    refused.dedup();
    Err(io::Error::other(format!(
        "{}; TMPDIR must name a short path that can be written",
        refused.join("; ")
    )))
}

fn bind_at(folder: &Path, user: Option<&User>) -> io::Result<(Place, UnixListener)> {
    // It has its name once somebody listens; see `sweep`.
    let place = Place::at(folder.with_extension("new"));
    // It must not be there: nobody else can have made it.
    DirBuilder::new().mode(0o700).create(&place.folder)?;
    sweep(&place.folder);
    let listener = UnixListener::bind(&place.socket)?;
    fs::set_permissions(&place.socket, Permissions::from_mode(0o600))?;
    if let Some(user) = user {
        for path in [&place.socket, &place.folder] {
            chown(path, Some(user.uid), Some(user.gid))?;
        }
    }
    fs::rename(&place.folder, folder)?;
    Ok((Place::at(folder.to_owned()), listener))
}

/// Removes the folders beside this one that a harness of the same user has left, which was killed.
fn sweep(own: &Path) {
    let Some((place, uid)) = own.parent().zip(fs::metadata(own).ok().map(|it| it.uid())) else {
        return;
    };
    for found in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = found.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let is_name = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            digits && text.len() == NAME_DIGITS
        };
        // Of a link, what it is itself.
        let ours = found.metadata().is_ok_and(|it| {
            it.is_dir() && it.uid() == uid && it.permissions().mode() & 0o777 == 0o700
        });
        if !name.is_some_and(is_name) || !ours {
            continue;
        }
        let folder = found.path();
        let refused = StdUnixStream::connect(folder.join(SOCKET)).err();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            drop(Place::at(folder));
        }
    }
}

/// A name for the folder in a place that is short enough and, for another user, open to all.
fn folder(place: &Path, user: Option<&User>) -> io::Result<PathBuf> {
    let digits = Uuid::new_v4().simple().to_string();
    let place = std::path::absolute(place)?;
    let folder = place.join(format!("{NAME}{}", &digits[..NAME_DIGITS]));
    if folder.join(SOCKET).as_os_str().len() >= PATH_BYTES {
        return Err(io::Error::other("its path is too long for a socket"));
    }
    if user.is_some() && !place.ancestors().all(is_open) {
        return Err(io::Error::other("not every user may enter it"));
    }
    Ok(folder)
}

/// Whether every user may pass through a folder.
fn is_open(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|it| it.permissions().mode() & 0o001 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdUnixListener;
    use std::sync::Mutex;

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
    async fn a_folder_that_a_killed_harness_has_left_is_removed_and_one_in_use_is_not() {
        let name = || folder(&env::temp_dir(), None).expect("a place");
        let made = [name(), name(), name().with_extension("new")];
        let listeners = made.each_ref().map(|folder| {
            DirBuilder::new().mode(0o700).create(folder).expect("made");
            StdUnixListener::bind(folder.join(SOCKET)).expect("bound")
        });
        let [stale, used, begun] = made.map(Place::at);
        let [left, _used, half] = listeners;
        drop((left, half));
        check(None).expect("a door can be opened");
        assert!(!stale.folder.exists(), "nobody listens there");
        assert!(used.socket.exists(), "somebody does");
        assert!(begun.socket.exists(), "somebody may be about to");
    }

    #[tokio::test]
    async fn a_place_that_cannot_hold_it_is_told_with_its_reason() {
        let temp = tempfile::TempDir::new().expect("a folder");
        let long = temp.path().join("x".repeat(PATH_BYTES));
        let none = temp.path().join("none");
        for (place, part) in [(none, "No such file"), (long, "too long")] {
            let bound = folder(&place, None).and_then(|folder| bind_at(&folder, None));
            let refused = bound.map(drop).expect_err("refused").to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
