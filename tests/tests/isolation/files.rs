//! Files outside those that are allowed.

use std::fs;

use harness_server::supervisor::isolation::{Files, Isolation};
use harness_server::supervisor::process::StartError;
use harness_tests::guarded::output;
use tempfile::TempDir;

use crate::{breakout, isolated, refused, system, told};

#[tokio::test]
async fn files_outside_are_neither_read_nor_written_nor_emptied() {
    let (open, shut) = (
        TempDir::new().expect("a folder"),
        TempDir::new().expect("a folder"),
    );
    let path = |folder: &TempDir, name: &str| folder.path().join(name).display().to_string();
    let (secret, kept) = (path(&shut, "secret"), path(&open, "kept"));
    fs::write(&secret, "the secret").expect("written");
    fs::write(&kept, "the kept").expect("written");
    let files = |write: &[&TempDir]| Isolation {
        files: Some(Files {
            read: system(),
            write: write
                .iter()
                .map(|folder| folder.path().to_owned())
                .collect(),
        }),
        ..Isolation::default()
    };
    let within = files(&[&open]);
    assert_eq!(told(breakout(["read", &secret])).await, "done the secret");
    let denied = "refused Permission denied (os error 13)";
    for way in ["read", "truncate", "write"] {
        assert_eq!(
            told(isolated([way, &secret], &within)).await,
            denied,
            "{way}"
        );
    }
    let new = path(&shut, "new");
    assert_eq!(told(isolated(["write", &new], &within)).await, denied);
    assert_eq!(fs::read_to_string(&secret).expect("read"), "the secret");
    // By a link that lies where it may write, neither.
    let link = path(&open, "link");
    std::os::unix::fs::symlink(&secret, &link).expect("linked");
    assert_eq!(told(isolated(["read", &link], &within)).await, denied);
    // What it may.
    assert_eq!(
        told(isolated(["read", &kept], &within)).await,
        "done the kept"
    );
    assert_eq!(told(isolated(["write", &kept], &within)).await, "done");
    assert_eq!(fs::read_to_string(&kept).expect("read"), "broken out");
    assert_eq!(
        told(isolated(["write", "/dev/null"], &within)).await,
        "done"
    );
    // What may be read may not be written.
    let mut reading = files(&[]);
    let list = &mut reading.files.as_mut().expect("set").read;
    list.push(open.path().to_owned());
    assert_eq!(
        told(isolated(["read", &kept], &reading)).await,
        "done broken out"
    );
    assert_eq!(told(isolated(["write", &kept], &reading)).await, denied);
}

#[tokio::test]
async fn a_folder_that_is_to_be_allowed_must_be_there() {
    for setting in ["sandbox.read", "sandbox.write"] {
        let mut files = Files {
            read: system(),
            write: vec![],
        };
        let list = match setting {
            "sandbox.read" => &mut files.read,
            _ => &mut files.write,
        };
        list.push("/no/such/folder".into());
        let isolation = Isolation {
            files: Some(files),
            ..Isolation::default()
        };
        let reason = refused(isolation, setting).await;
        assert!(
            reason.starts_with("/no/such/folder: No such file"),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_command_outside_the_files_is_not_executed() {
    let mut outside = breakout(["hang"]);
    outside.isolation.files = Some(Files::default());
    let error = output(outside).await;
    let Err(StartError::Command { source, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
}
