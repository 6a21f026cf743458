//! What a language model is to the loop: a request goes in, a complete answer or an error comes
//! out, and pieces of it may be passed on meanwhile.
//!
//! Owns the [`Model`] trait and its erased form. A model makes one try: waiting and trying again is
//! the loop's affair, and the only place of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::failure::ModelError;
use super::pieces::Pieces;
use super::request::Request;
use super::response::Response;

/// A language model.
///
/// ```
/// use worker_sdk::agent_loop::{Finish, Model, ModelError, Pieces, Request, Response, Usage};
///
/// /// Says the same to everything.
/// struct Parrot;
///
/// impl Model for Parrot {
///     fn provider(&self) -> &str {
///         "parrot"
///     }
///
///     fn model(&self) -> &str {
///         "parrot-1"
///     }
///
///     async fn complete(&self, _: &Request, pieces: &mut Pieces) -> Result<Response, ModelError> {
///         pieces.text("hello").await?;
///         Ok(Response {
///             id: String::new(),
///             provider: "parrot".into(),
///             model: "parrot-1".into(),
///             answered_by: "parrot-1".into(),
///             finish: Finish::Stop,
///             finish_raw: "stop".into(),
///             blocks: vec![worker_sdk::agent_loop::Block::Text { text: "hello".into() }],
///             raw: vec![],
///             usage: Usage::default(),
///             note: None,
///         })
///     }
/// }
/// ```
pub trait Model: Send + Sync + 'static {
    /// The provider, as OpenTelemetry names it where it does: `anthropic`, `openai`.
    fn provider(&self) -> &str;

    /// The model that is asked.
    fn model(&self) -> &str;

    /// Makes one call. Dropping the future ends it.
    ///
    /// # Errors
    /// The call failed or its answer did not come to its end.
    fn complete(
        &self,
        request: &Request,
        pieces: &mut Pieces,
    ) -> impl Future<Output = Result<Response, ModelError>> + Send;
}

type Completing<'a> = Pin<Box<dyn Future<Output = Result<Response, ModelError>> + Send + 'a>>;

/// A [`Model`] without its type.
pub(crate) trait AnyModel: Send + Sync {
    fn provider(&self) -> &str;
    fn model(&self) -> &str;
    fn complete<'a>(&'a self, request: &'a Request, pieces: &'a mut Pieces) -> Completing<'a>;
}

impl<M: Model> AnyModel for M {
    fn provider(&self) -> &str {
        Model::provider(self)
    }

    fn model(&self) -> &str {
        Model::model(self)
    }

    fn complete<'a>(&'a self, request: &'a Request, pieces: &'a mut Pieces) -> Completing<'a> {
        Box::pin(Model::complete(self, request, pieces))
    }
}

impl<M: Model> Model for Arc<M> {
    fn provider(&self) -> &str {
        M::provider(self)
    }

    fn model(&self) -> &str {
        M::model(self)
    }

    fn complete(
        &self,
        request: &Request,
        pieces: &mut Pieces,
    ) -> impl Future<Output = Result<Response, ModelError>> + Send {
        M::complete(self, request, pieces)
    }
}
