//! What calls show of whom they are from.
//!
//! Owns the token and its form in a call's metadata. Shows it nowhere else.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::error::{Error, ErrorKind};

/// A token, or none. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Credential(Option<MetadataValue<Ascii>>);

impl Credential {
    /// The token's form as `authorization`.
    pub(super) fn bearer(token: &str) -> Result<Self, Error> {
        let value = format!("Bearer {token}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| {
            let message = "the token holds letters that no token has: use visible ASCII";
            Error::new(ErrorKind::Unauthenticated, message)
        })?;
        // Kept out of header tables and of what is printed.
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Credential {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "token" } else { "none" })
    }
}
