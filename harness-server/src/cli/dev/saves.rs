//! When a file is saved that the worker is made of.
//!
//! Owns which files those are. Folders are watched one by one, so that those full of what nobody
//! edits are left alone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tracing::warn;

use crate::cli::error::CliError;

/// How long nothing may be written before a save is over. An editor writes more than once.
const QUIET: Duration = Duration::from_millis(100);

/// A save is over after this even if something is written all the time.
const LONGEST: Duration = Duration::from_secs(1);

/// Folders that are watched at most.
const FOLDERS_MAX: usize = 1_000;

/// Folders that hold what was made and not written.
const MADE: [&str; 3] = ["target", "node_modules", "__pycache__"];

/// The file that makes a folder a virtual environment of Python.
const VIRTUAL: &str = "pyvenv.cfg";

/// Ends of the names of files that nobody writes by hand.
const NOISE: [&str; 5] = ["~", ".log", ".pyc", ".swp", ".tmp"];

/// The files that matter, watched.
pub(super) struct Saves {
    watcher: RecommendedWatcher,
    roots: Arc<Roots>,
    folders: BTreeSet<PathBuf>,
    seen: Arc<watch::Sender<Seen>>,
    news: watch::Receiver<Seen>,
}

/// What has happened since it was asked last.
#[derive(Debug, Default)]
struct Seen {
    /// A file that was saved.
    file: Option<PathBuf>,
    /// Whether there may be folders that are not watched yet.
    folder: bool,
}

/// What is to be watched, as absolute paths without links.
#[derive(Debug, Default)]
struct Roots {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Saves {
    /// Watches files and folders, with the folders below.
    ///
    /// # Errors
    /// One is not there, there are too many folders, or the system refuses.
    pub(super) fn watch(paths: &[PathBuf]) -> Result<Self, CliError> {
        let roots = Arc::new(Roots::of(paths)?);
        let (seen, news) = watch::channel(Seen::default());
        let seen = Arc::new(seen);
        let watcher = notify::recommended_watcher({
            let (roots, seen) = (roots.clone(), seen.clone());
            move |event| match event {
                Ok(event) => roots.see(&event, &seen),
                Err(error) => warn!(%error, "cannot watch for saves"),
            }
        });
        let mut saves = Self {
            watcher: watcher.map_err(refused)?,
            roots,
            folders: BTreeSet::new(),
            seen,
            news,
        };
        saves.cover()?;
        Ok(saves)
    }

    /// Waits for the next save and until it is over; gives a file of it.
    ///
    /// # Errors
    /// A new folder cannot be watched.
    pub(super) async fn next(&mut self) -> Result<PathBuf, CliError> {
        loop {
            self.changed().await;
            let quiet =
                async { while tokio::time::timeout(QUIET, self.changed()).await.is_ok() {} };
            // What is written all the time is looked at all the same.
            let _ = tokio::time::timeout(LONGEST, quiet).await;
            let mut seen = Seen::default();
            self.seen.send_if_modified(|news| {
                seen = std::mem::take(news);
                false
            });
            let found = if seen.folder { self.cover()? } else { None };
            if let Some(file) = seen.file.or(found) {
                return Ok(self.roots.shown(file));
            }
        }
    }

    async fn changed(&mut self) {
        let changed = self.news.changed().await;
        changed.expect("the sender must be kept with the receiver");
    }

    /// Watches every folder there is. A file of one that is new, if there is any.
    fn cover(&mut self) -> Result<Option<PathBuf>, CliError> {
        let mut covered = BTreeSet::new();
        let (mut found, mut waiting) = (None, self.roots.folders.clone());
        for parent in self.roots.parents() {
            self.watch_folder(&parent)?;
            covered.insert(parent);
        }
        while let Some(folder) = waiting.pop() {
            if covered.len() >= FOLDERS_MAX {
                return Err(CliError::Usage(format!(
                    "there are more than {FOLDERS_MAX} folders to watch: name those that matter \
                     with --watch"
                )));
            }
            // Before it is listed: what is saved between the two is seen.
            self.watch_folder(&folder)?;
            let is_new = !self.folders.contains(&folder);
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if !self.roots.hold(&path) || (is_folder && path.join(VIRTUAL).exists()) {
                    continue;
                }
                if is_folder {
                    waiting.push(path);
                } else if is_new {
                    found = Some(path);
                }
            }
            covered.insert(folder);
        }
        self.folders = covered;
        Ok(found)
    }

    /// Watches a folder, without those below. One that is watched already costs nothing; one that
    /// was made again is another.
    fn watch_folder(&mut self, folder: &Path) -> Result<(), CliError> {
        let watched = self.watcher.watch(folder, RecursiveMode::NonRecursive);
        match watched {
            Err(error) if folder.exists() => Err(refused(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Roots {
    fn of(paths: &[PathBuf]) -> Result<Self, CliError> {
        let mut roots = Self::default();
        for path in paths {
            let whole = path.canonicalize().map_err(|error| {
                CliError::Usage(format!("cannot watch {}: {error}", path.display()))
            })?;
            match whole.is_dir() {
                true => roots.folders.push(whole),
                false => roots.files.push(whole),
            }
        }
        Ok(roots)
    }

    /// The folders of the files that are watched by themselves. A file is watched through its
    /// folder: most editors put another one in its place.
    fn parents(&self) -> BTreeSet<PathBuf> {
        let parents = self.files.iter().filter_map(|file| file.parent());
        parents.map(Path::to_owned).collect()
    }

    /// Whether a path is one that matters.
    fn hold(&self, path: &Path) -> bool {
        let is_below = |root: &PathBuf| {
            path.strip_prefix(root)
                .is_ok_and(|below| !below.iter().any(is_noise))
        };
        self.files.iter().any(|file| file == path) || self.folders.iter().any(is_below)
    }

    fn see(&self, event: &Event, seen: &watch::Sender<Seen>) {
        let may_be_folder = match event.kind {
            EventKind::Create(_) | EventKind::Remove(_) => true,
            EventKind::Modify(ModifyKind::Name(_)) => true,
            EventKind::Modify(ModifyKind::Metadata(_)) | EventKind::Access(_) => return,
            EventKind::Modify(_) | EventKind::Any | EventKind::Other => event.need_rescan(),
        };
        for path in event.paths.iter().filter(|path| self.hold(path)) {
            let is_folder = path.is_dir();
            seen.send_modify(|seen| {
                seen.folder |= may_be_folder;
                if !is_folder {
                    seen.file = Some(path.clone());
                }
            });
        }
        if event.need_rescan() {
            seen.send_modify(|seen| seen.folder = true);
        }
    }

    /// A path as it is told: from its root.
    fn shown(&self, file: PathBuf) -> PathBuf {
        let below = self
            .folders
            .iter()
            .find_map(|root| file.strip_prefix(root).ok());
        below.map_or_else(|| file.clone(), Path::to_owned)
    }
}

/// Whether a file or folder of this name is none that somebody edits.
fn is_noise(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let ends = NOISE.iter().any(|end| name.ends_with(end));
    name.starts_with('.') || MADE.contains(&&*name) || ends
}

fn refused(error: notify::Error) -> CliError {
    CliError::io("cannot watch for saves", std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_and_what_editors_leave_is_no_save() {
        let folders = vec![PathBuf::from("/home/.me/project")];
        let files = vec![PathBuf::from("/home/.me/project/target/debug/worker")];
        let roots = Roots { files, folders };
        for (path, held) in [
            ("worker.py", true),
            ("src/agent.py", true),
            ("prompts/first.txt", true),
            ("target/debug/worker", true),
            ("target/debug/other", false),
            (".git/index", false),
            ("src/.worker.py.swp", false),
            ("src/worker.py~", false),
            ("__pycache__/worker.cpython-311.pyc", false),
            ("web/node_modules/x/index.js", false),
            ("worker.log", false),
        ] {
            let whole = Path::new("/home/.me/project").join(path);
            assert_eq!(roots.hold(&whole), held, "{path}");
        }
        assert!(!roots.hold(Path::new("/home/.me/other/worker.py")));
    }

    async fn next(saves: &mut Saves) -> Option<PathBuf> {
        let next = tokio::time::timeout(Duration::from_secs(10), saves.next());
        next.await.ok()?.ok()
    }

    #[tokio::test]
    async fn a_save_is_seen_in_place_by_rename_and_in_folders_that_are_new() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let root = folder.path().canonicalize().expect("a path");
        let write = |path: &str| std::fs::write(root.join(path), "x").expect("written");
        write("worker.py");
        let mut saves = Saves::watch(std::slice::from_ref(&root)).expect("watched");
        write("worker.py");
        assert_eq!(next(&mut saves).await, Some("worker.py".into()));
        write("4711.tmp");
        std::fs::rename(root.join("4711.tmp"), root.join("worker.py")).expect("renamed");
        assert_eq!(next(&mut saves).await, Some("worker.py".into()));
        std::fs::create_dir_all(root.join("src/deep")).expect("made");
        write("src/deep/agent.py");
        let seen = next(&mut saves).await;
        assert_eq!(seen, Some("src/deep/agent.py".into()));
        write("src/deep/agent.py");
        assert_eq!(next(&mut saves).await, seen, "and it is watched now");
    }

    #[tokio::test]
    async fn folders_of_what_is_made_are_not_watched() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let root = folder.path().canonicalize().expect("a path");
        for made in ["target", ".git", "env", "src"] {
            std::fs::create_dir(root.join(made)).expect("made");
        }
        std::fs::write(root.join("env").join(VIRTUAL), "").expect("written");
        let saves = Saves::watch(std::slice::from_ref(&root)).expect("watched");
        let watched: Vec<PathBuf> = saves.folders.into_iter().collect();
        assert_eq!(watched, [root.clone(), root.join("src")]);
    }

    #[test]
    fn a_path_that_is_not_there_is_told() {
        let refused = Saves::watch(&["/no/such/file".into()]).err();
        let told = refused.expect("refused").to_string();
        assert!(told.contains("/no/such/file"), "{told}");
    }
}
