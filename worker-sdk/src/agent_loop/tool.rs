//! What a tool is: a name, a description, a schema, a function and how it may be run.
//!
//! Owns the settings of one tool and the erasure of its types. Running it, with its timeout and
//! retries, is `trying`'s affair; which tools an agent has is the toolbox's.

mod context;
mod error;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::arguments::Rejection;
use crate::payload::Describe as _;

pub use context::ToolContext;
pub use error::ToolError;
pub(crate) use error::ToolFailure;

/// What running a tool a second time does, which decides what happens when nobody knows whether it
/// ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Changes nothing: it may run again at any time, and its begin is not recorded unless there
    /// are hooks.
    ReadOnly,
    /// Running it twice under one idempotency key is the same as once.
    Idempotent,
    /// Whether it ran can be asked; see [`Tool::verified_by`].
    Verifiable,
    /// Must not run twice. When its outcome is lost, the model is told that it is unknown. What a
    /// tool is unless told otherwise.
    SideEffect,
}

/// A tool.
///
/// ```
/// use std::time::Duration;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use worker_sdk::agent_loop::{Class, Tool, ToolContext, ToolError};
///
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Search {
///     /// Words to look for.
///     query: String,
///     limit: Option<u32>,
/// }
///
/// async fn search(_: ToolContext, arguments: Search) -> Result<Vec<String>, ToolError> {
///     Ok(vec![format!("nothing about {}", arguments.query)])
/// }
///
/// let tool = Tool::new("search", "Looks words up in the index.", search)
///     .class(Class::ReadOnly)
///     .parallel_safe()
///     .timeout(Duration::from_secs(5));
/// assert_eq!(tool.name(), "search");
/// ```
#[derive(Clone)]
pub struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) parameters: Value,
    pub(crate) timeout: Duration,
    pub(crate) max_retries: u32,
    pub(crate) class: Class,
    pub(crate) parallel_safe: bool,
    pub(crate) max_result_bytes: usize,
    pub(crate) function: Arc<dyn Function>,
    pub(crate) check: Option<Arc<dyn Check>>,
}

impl Tool {
    /// How long one try of a tool may take unless told otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(30);
    /// How often a tool is tried again unless told otherwise.
    pub const MAX_RETRIES: u32 = 3;
    /// How much of a result the model is shown unless told otherwise, in bytes.
    pub const MAX_RESULT_BYTES: usize = 64 * 1024;

    /// A tool made of an async function. The schema of its arguments is derived from their type;
    /// doc comments of fields become descriptions the model reads. A result that is a string is
    /// shown as it is, any other as JSON.
    ///
    /// With `#[serde(deny_unknown_fields)]` a model cannot invent arguments.
    ///
    /// # Code that blocks
    /// The function runs on the run's own task. One that blocks its thread, with a file, a lock or a
    /// computation, holds up the tools beside it, and neither its timeout nor a cancellation reaches
    /// it before its next `.await`. Put what blocks on a thread of its own:
    ///
    /// ```
    /// # use worker_sdk::agent_loop::{Tool, ToolContext, ToolError};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct File { path: String }
    /// let tool = Tool::new("read", "Reads a file.", |_: ToolContext, file: File| async move {
    ///     let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(file.path));
    ///     Ok(text.await??)
    /// });
    /// ```
    ///
    /// The thread goes on when the tool is given up:
    /// [`ToolContext::is_cancelled`] tells it, and
    /// [`Context::hold`](crate::Context::hold) keeps the slot until it is done.
    pub fn new<F, Fut, A, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        function: F,
    ) -> Self
    where
        F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize + Send + 'static,
    {
        let parameters = A::request_schema().unwrap_or(Value::Null);
        Self::with_schema(name, description, parameters, function)
    }

    /// A tool with a schema of its own; its arguments may be any type serde reads, such as
    /// [`serde_json::Value`].
    pub fn with_schema<F, Fut, A, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: Value,
        function: F,
    ) -> Self
    where
        F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
    {
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            timeout: Self::TIMEOUT,
            max_retries: Self::MAX_RETRIES,
            class: Class::SideEffect,
            parallel_safe: false,
            max_result_bytes: Self::MAX_RESULT_BYTES,
            function: Arc::new(Typed {
                function,
                types: PhantomData,
            }),
            check: None,
        }
    }

    /// How long one try may take; at least a millisecond. Default 30 s. Beyond it the try is dropped,
    /// and of a tool that may not run twice the model is told that its effect is unknown.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How often it is tried again after a failure that may pass. Default 3. A side effect, or what
    /// is verifiable, is tried again only after [`ToolError::before_effect`].
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// What running it twice does. Default [`Class::SideEffect`].
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// It may run beside other parallel-safe tools. Default: it runs alone.
    #[must_use]
    pub fn parallel_safe(mut self) -> Self {
        self.parallel_safe = true;
        self
    }

    /// How much of a result the model is shown, in bytes: beyond it the head and the tail, and the
    /// true size. Default 64 KiB. The journal has it whole up to 768 KiB, or what the harness takes
    /// in an entry where that is less.
    #[must_use]
    pub fn max_result_bytes(mut self, bytes: usize) -> Self {
        self.max_result_bytes = bytes.max(256);
        self
    }

    /// Makes it [`Class::Verifiable`]. When a worker died between the begin and the end of a run of
    /// the tool, `check` is asked with the same idempotency key: Some is what the tool would have
    /// returned, None says that it did not happen and may run. A check that fails is asked again, as
    /// often as the tool may be tried again; when it never answers, the model is told that the
    /// outcome is unknown, and the tool is not run. Each failure is an event, `check_failed`.
    ///
    /// ```
    /// use worker_sdk::agent_loop::{Tool, ToolContext, ToolError};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Order { item: String }
    /// # async fn find(key: &str) -> Option<String> { None }
    /// # async fn place(key: &str, item: &str) -> String { String::new() }
    ///
    /// let tool = Tool::new("order", "Orders an item.", |ctx: ToolContext, order: Order| async move {
    ///     Ok(place(ctx.idempotency_key(), &order.item).await)
    /// })
    /// .verified_by(|ctx: ToolContext, _: Order| async move { Ok(find(ctx.idempotency_key()).await) });
    /// ```
    #[must_use]
    pub fn verified_by<F, Fut, A, R>(mut self, check: F) -> Self
    where
        F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<R>, ToolError>> + Send + 'static,
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.class = Class::Verifiable;
        self.check = Some(Arc::new(Typed {
            function: check,
            types: PhantomData,
        }));
        self
    }

    /// The name the model calls it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a failure that may have come after an effect is tried again.
    pub(crate) fn may_run_again(&self) -> bool {
        match self.class {
            Class::ReadOnly | Class::Idempotent => true,
            Class::Verifiable | Class::SideEffect => false,
        }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.name)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

type Working<T> = Pin<Box<dyn Future<Output = Result<T, ToolError>> + Send>>;

/// A tool's function without its types.
pub(crate) trait Function: Send + Sync {
    /// Whether arguments that match the schema are of the function's type too.
    fn takes(&self, arguments: &Value) -> Result<(), Rejection>;

    /// Runs it; the result is text for the model.
    fn run(&self, ctx: ToolContext, arguments: Value) -> Working<String>;
}

/// A tool's check without its types.
pub(crate) trait Check: Send + Sync {
    fn ask(&self, ctx: ToolContext, arguments: Value) -> Working<Option<String>>;
}

struct Typed<F, A, R> {
    function: F,
    types: PhantomData<fn(A) -> R>,
}

impl<F, Fut, A, R> Function for Typed<F, A, R>
where
    F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    A: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn takes(&self, arguments: &Value) -> Result<(), Rejection> {
        let typed = A::deserialize(arguments);
        typed
            .map(drop)
            .map_err(|error| Rejection::not_of_the_type(&error))
    }

    fn run(&self, ctx: ToolContext, arguments: Value) -> Working<String> {
        match serde_json::from_value(arguments) {
            Ok(arguments) => {
                let work = (self.function)(ctx, arguments);
                Box::pin(async move { shown(&work.await?) })
            }
            Err(error) => Box::pin(std::future::ready(Err(not_taken(&error)))),
        }
    }
}

impl<F, Fut, A, R> Check for Typed<F, A, R>
where
    F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<R>, ToolError>> + Send + 'static,
    A: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    fn ask(&self, ctx: ToolContext, arguments: Value) -> Working<Option<String>> {
        match serde_json::from_value(arguments) {
            Ok(arguments) => {
                let asked = (self.function)(ctx, arguments);
                Box::pin(async move {
                    match asked.await? {
                        Some(result) => shown(&result).map(Some),
                        None => Ok(None),
                    }
                })
            }
            Err(error) => Box::pin(std::future::ready(Err(not_taken(&error)))),
        }
    }
}

fn not_taken(error: &serde_json::Error) -> ToolError {
    ToolError::permanent(format!("the arguments are not of the tool's type: {error}"))
}

/// A result as the model reads it.
fn shown<R: Serialize>(result: &R) -> Result<String, ToolError> {
    match serde_json::to_value(result) {
        Ok(Value::String(text)) => Ok(text),
        Ok(value) => Ok(value.to_string()),
        Err(error) => Err(ToolError::permanent(format!(
            "the tool ran, but its result has no JSON form: {error}"
        ))),
    }
}
