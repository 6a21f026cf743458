//! Values with their media type, and how Rust types become and come from them.
//!
//! Owns [`Payload`] and the three traits an agent's request and reply go through. Everything that
//! implements serde and `JsonSchema` has them; [`Payload`] itself has them too and is then passed
//! raw, with no schema. Knows nothing of the wire.

use bytes::Bytes;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The media type of JSON, the default of every payload.
pub const JSON: &str = "application/json";

/// A value with its media type.
///
/// ```
/// use worker_sdk::Payload;
///
/// let picture = Payload::new("image/png", vec![0x89, 0x50]);
/// assert_eq!(picture.content_type(), "image/png");
/// let number: u32 = Payload::json(&7)?.to_json()?;
/// assert_eq!(number, 7);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    content_type: String,
    data: Bytes,
}

impl Payload {
    /// A payload of any media type; an empty one means JSON.
    pub fn new(content_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        let mut content_type = content_type.into();
        if content_type.is_empty() {
            JSON.clone_into(&mut content_type);
        }
        Self {
            content_type,
            data: data.into(),
        }
    }

    /// The value as JSON.
    ///
    /// # Errors
    /// What serde says when the value has no JSON form, such as a map with keys that are no strings.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self::new(JSON, serde_json::to_vec(value)?))
    }

    /// Plain UTF-8 text, `text/plain; charset=utf-8`.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new("text/plain; charset=utf-8", text.into())
    }

    /// The media type, never empty.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The bytes, without a copy.
    pub fn into_data(self) -> Bytes {
        self.data
    }

    /// Whether the media type is JSON.
    pub fn is_json(&self) -> bool {
        let essence = self
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        essence.eq_ignore_ascii_case(JSON)
    }

    /// Reads the bytes as JSON, whatever the media type says.
    ///
    /// # Errors
    /// What serde says when the bytes are no JSON of this type.
    pub fn to_json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.data)
    }
}

/// What an agent can be asked with and a caller can be answered with.
///
/// Every `DeserializeOwned` type is read from JSON; [`Payload`] is taken as it came.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read from a payload",
    note = "derive `serde::Deserialize` for it, or take `worker_sdk::Payload` raw"
)]
pub trait FromPayload: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// One line that says why the payload is none of these.
    fn from_payload(payload: Payload) -> Result<Self, String>;
}

impl<T: DeserializeOwned> FromPayload for T {
    fn from_payload(payload: Payload) -> Result<Self, String> {
        if !payload.is_json() {
            return Err(format!("expected {JSON}, got {}", payload.content_type));
        }
        payload.to_json().map_err(|error| error.to_string())
    }
}

impl FromPayload for Payload {
    fn from_payload(payload: Payload) -> Result<Self, String> {
        Ok(payload)
    }
}

/// What an agent can reply with, send as output and ask with.
///
/// Every `Serialize` type becomes JSON; [`Payload`] is passed as it is.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot become a payload",
    note = "derive `serde::Serialize` for it, or give `worker_sdk::Payload` raw"
)]
pub trait IntoPayload {
    /// Writes it.
    ///
    /// # Errors
    /// One line that says why the value has no JSON form.
    fn into_payload(self) -> Result<Payload, String>;
}

impl<T: Serialize> IntoPayload for T {
    fn into_payload(self) -> Result<Payload, String> {
        Payload::json(&self).map_err(|error| error.to_string())
    }
}

impl IntoPayload for Payload {
    fn into_payload(self) -> Result<Payload, String> {
        Ok(self)
    }
}

impl IntoPayload for &Payload {
    fn into_payload(self) -> Result<Payload, String> {
        Ok(self.clone())
    }
}

/// A type that can say what its JSON looks like.
///
/// Every `JsonSchema` type can; [`Payload`] takes anything and has no schema.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no schema",
    note = "derive `schemars::JsonSchema` for it, or use `worker_sdk::Payload` raw"
)]
pub trait Describe {
    /// JSON Schema 2020-12 of what is read, with `$ref` only within the document. None takes
    /// anything.
    fn request_schema() -> Option<serde_json::Value>;

    /// The same of what is written.
    fn reply_schema() -> Option<serde_json::Value>;
}

impl<T: JsonSchema> Describe for T {
    fn request_schema() -> Option<serde_json::Value> {
        let settings = SchemaSettings::draft2020_12().for_deserialize();
        Some(
            settings
                .into_generator()
                .into_root_schema_for::<T>()
                .to_value(),
        )
    }

    fn reply_schema() -> Option<serde_json::Value> {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        Some(
            settings
                .into_generator()
                .into_root_schema_for::<T>()
                .to_value(),
        )
    }
}

impl Describe for Payload {
    fn request_schema() -> Option<serde_json::Value> {
        None
    }

    fn reply_schema() -> Option<serde_json::Value> {
        None
    }
}
