//! Regenerates the committed code from the `.proto` files, with no protoc, and compares.
//!
//! `HARNESS_REGENERATE=1 cargo test -p harness-proto --test generated` writes it instead.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use tonic_prost_build::{Builder, configure};

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

const FILES: [&str; 4] = [
    "harness/v1/envelope.proto",
    "harness/v1/worker_service.proto",
    "harness/v1/run_service.proto",
    "harness/v1/admin_service.proto",
];

/// The fields that whoever relays an entry keeps as bytes.
const OPAQUE_FIELDS: [(&str, &str); 2] = [("Append", "entry"), ("JournalEntry", "entry")];

#[test]
fn committed_code_is_what_the_proto_files_generate() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let fresh = tempfile::tempdir().expect("a temporary folder");
    let set = protox::compile(FILES, [&root]).expect("the .proto files compile");

    fs::write(
        fresh.path().join("harness.v1.binpb"),
        without_comments(set.clone()).encode_to_vec(),
    )
    .expect("the descriptor set is written");
    generate(configure(), set.clone(), fresh.path(), "harness.v1.rs");
    generate(
        configure()
            .build_client(false)
            .codec_path("crate::codec::RelayCodec"),
        with_opaque_entries(set),
        fresh.path(),
        "harness.v1.relay.rs",
    );

    let committed = root.join("src/gen");
    for file in ["harness.v1.binpb", "harness.v1.rs", "harness.v1.relay.rs"] {
        let new = fs::read(fresh.path().join(file)).expect("the file was generated");
        if std::env::var_os("HARNESS_REGENERATE").is_some() {
            fs::create_dir_all(&committed).expect("the folder is made");
            fs::write(committed.join(file), new).expect("the file is written");
            continue;
        }
        let old = fs::read(committed.join(file)).unwrap_or_default();
        assert!(
            old == new,
            "proto/src/gen/{file} is not what the .proto files generate; run \
             HARNESS_REGENERATE=1 cargo test -p harness-proto --test generated"
        );
    }
}

fn generate(builder: Builder, set: FileDescriptorSet, folder: &Path, name: &str) {
    let out = folder.join(format!("{name}.d"));
    fs::create_dir(&out).expect("the output folder is made");
    builder
        .build_transport(false)
        .bytes(".")
        .out_dir(&out)
        .compile_fds(set)
        .expect("code is generated");
    fs::rename(out.join("harness.v1.rs"), folder.join(name)).expect("the package is harness.v1");
}

fn without_comments(mut set: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set
}

fn with_opaque_entries(mut set: FileDescriptorSet) -> FileDescriptorSet {
    let mut changed = 0;
    for file in &mut set.file {
        for message in &mut file.message_type {
            for (message_name, field_name) in OPAQUE_FIELDS {
                if message.name() != message_name {
                    continue;
                }
                for field in &mut message.field {
                    if field.name() == field_name {
                        field.set_type(Type::Bytes);
                        field.type_name = None;
                        changed += 1;
                    }
                }
            }
        }
    }
    assert_eq!(changed, OPAQUE_FIELDS.len(), "every opaque field exists");
    set
}
