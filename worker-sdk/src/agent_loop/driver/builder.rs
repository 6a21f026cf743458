//! Setting an agent up.

use std::sync::Arc;
use std::time::Duration;

use super::{AgentLoop, Parts};
use crate::agent::AgentError;
use crate::agent_loop::budget::{Budget, BytesOverThree, Limits, Prices, TokenCounter};
use crate::agent_loop::hook::{Hook, PendingCall, Verdict};
use crate::agent_loop::machine::Rules;
use crate::agent_loop::model::AnyModel;
use crate::agent_loop::redact::Redactor;
use crate::agent_loop::request::{Thinking, ToolChoice};
use crate::agent_loop::tool::Tool;
use crate::agent_loop::toolbox::{Toolbox, ToolboxError};

/// How a model call that failed is made again: the only place where one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRetry {
    /// Calls made again at most. Default 5.
    pub retries: u32,
    /// The first wait, at random between nothing and twice this. Default 500 ms; doubles each time.
    pub initial: Duration,
    /// What the doubling ends at. Default 30 s.
    pub max: Duration,
    /// The longest wait a provider may ask for: beyond it the call fails at once. Default 60 s.
    pub cap: Duration,
}

impl Default for ModelRetry {
    fn default() -> Self {
        Self {
            retries: 5,
            initial: Duration::from_millis(500),
            max: Duration::from_secs(30),
            cap: Duration::from_secs(60),
        }
    }
}

/// An agent that is being set up; every setting but the model has a default.
#[must_use = "an agent is made by build"]
pub struct AgentLoopBuilder {
    model: Arc<dyn AnyModel>,
    tools: Vec<Tool>,
    hooks: Vec<Arc<dyn Hook>>,
    rules: Rules,
    system: Option<String>,
    tool_choice: ToolChoice,
    temperature: Option<f32>,
    stream: bool,
    retry: ModelRetry,
    counter: Arc<dyn TokenCounter>,
    redactor: Redactor,
    unauthorized_is_fatal: bool,
    parallel_tools: usize,
}

impl AgentLoopBuilder {
    pub(super) fn new(model: Arc<dyn AnyModel>) -> Self {
        Self {
            model,
            tools: Vec::new(),
            hooks: Vec::new(),
            rules: Rules::default(),
            system: None,
            tool_choice: ToolChoice::Auto,
            temperature: None,
            stream: true,
            retry: ModelRetry::default(),
            counter: Arc::new(BytesOverThree),
            redactor: Redactor::default(),
            unauthorized_is_fatal: true,
            parallel_tools: 8,
        }
    }

    /// What stands above every conversation.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// A tool the model may call.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Tools the model may call.
    pub fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// A hook that is asked before a call runs: a policy, or a person's approval, which is a hook
    /// that takes long. It sees what the tool would get. Several are asked in the order they were
    /// given, until one does not allow the call.
    ///
    /// ```
    /// use worker_sdk::agent_loop::{AgentLoop, Class, PendingCall, ScriptedModel, Verdict};
    /// # async fn ask_a_person(call: &PendingCall) -> Result<bool, std::io::Error> { Ok(true) }
    ///
    /// let agent = AgentLoop::builder(ScriptedModel::new([])).before_tool(|call| async move {
    ///     if call.class != Class::SideEffect || ask_a_person(&call).await? {
    ///         return Ok(Verdict::Allow);
    ///     }
    ///     Ok(Verdict::deny("The owner said no. Do without it."))
    /// });
    /// ```
    ///
    /// # What is asked about
    /// A call whose arguments are valid and which no attempt has begun. What is allowed is recorded
    /// as begun, whatever its class, what is denied as its result: no later attempt asks about
    /// either again. A worker that dies before that leaves nothing, and the next one asks again,
    /// under the same [`PendingCall::idempotency_key`].
    ///
    /// # What an operator is told
    /// The event `tool_allowed` with the call and, from [`Verdict::allowed_by`], who allowed it; of a
    /// call that is denied, `tool_result` with the status `denied`. What is read back from the journal
    /// was told when it was decided.
    ///
    /// # How long it may take
    /// Until the run's deadline, when the run ends with `DEADLINE_EXCEEDED`. The run keeps its slot
    /// meanwhile. When the run is
    /// cancelled the hook is dropped, and the call was never started. Hooks of calls that run beside
    /// each other are asked beside each other, [`AgentLoopBuilder::parallel_tools`] at most; any
    /// other call is asked about when the one before it has its result.
    ///
    /// # When it fails
    /// An error or a panic of the hook ends the attempt, retryable, with nothing recorded. To end
    /// the run it answers [`Verdict::End`]. In both cases a call beside it that has begun comes to
    /// its end, and none begins any more.
    pub fn before_tool<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(PendingCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, AgentError>> + Send + 'static,
    {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Whether the model may, must or must not call tools. Default as it likes.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// What ends a run; see [`Limits`] for the defaults.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.rules.limits = limits;
        self
    }

    /// What a model call may read and write; see [`Budget`] for the defaults.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.rules.budget = budget;
        self
    }

    /// [`Budget::max_output_tokens`] alone. Comes behind [`AgentLoopBuilder::budget`], which sets all of it.
    pub fn max_output_tokens(mut self, tokens: u32) -> Self {
        self.rules.budget.max_output_tokens = tokens;
        self
    }

    /// [`Budget::thinking`] alone. Comes behind [`AgentLoopBuilder::budget`], which sets all of it.
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.rules.budget.thinking = thinking;
        self
    }

    /// What tokens cost, for the limit on cost and the run's usage.
    pub fn prices(mut self, prices: Prices) -> Self {
        self.rules.prices = Some(prices);
        self
    }

    /// How random answers are. Default the provider's.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Whether text goes to the caller as it comes. Default true. An answer of which text has gone
    /// out is not asked for again when it breaks off; the run then fails, retryable.
    pub fn stream(mut self, stream: bool) -> Self {
        self.stream = stream;
        self
    }

    /// How a model call that failed is made again; see [`ModelRetry`] for the defaults.
    pub fn retry(mut self, retry: ModelRetry) -> Self {
        self.retry = retry;
        self
    }

    /// Counts tokens. Default a third of the bytes, corrected by what the provider reports.
    pub fn token_counter(mut self, counter: impl TokenCounter) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// A value that is hidden in log lines, and in what a tool's error or a hook tells the model,
    /// such as a key a tool uses. The result of a tool that succeeds goes to the model and into the
    /// journal as it is, and a panic prints what it likes. A value under 4 bytes is not hidden: it
    /// would take half of every text with it.
    pub fn secret(mut self, value: &str) -> Self {
        self.redactor.register(value);
        self
    }

    /// Whether a tool that fails with a [`ToolError::http`](crate::agent_loop::ToolError::http) of
    /// 401 or 403 ends the run. Default true; else the model is told.
    pub fn unauthorized_is_fatal(mut self, fatal: bool) -> Self {
        self.unauthorized_is_fatal = fatal;
        self
    }

    /// Parallel-safe tools that run at once at most. Default 8.
    pub fn parallel_tools(mut self, tools: usize) -> Self {
        self.parallel_tools = tools.max(1);
        self
    }

    /// The agent.
    ///
    /// # Errors
    /// A tool cannot be registered: its name stands twice or is none, its schema is none, its check
    /// is missing; or the tool the model must call is none of them.
    pub fn build(self) -> Result<AgentLoop, ToolboxError> {
        let toolbox = Toolbox::new(self.tools)?;
        toolbox.allows(&self.tool_choice)?;
        let shown = toolbox.specs().iter().map(|spec| {
            let schema = self.counter.text(&spec.parameters.to_string());
            schema + self.counter.text(&spec.name) + self.counter.text(&spec.description)
        });
        let system = self
            .system
            .as_deref()
            .map_or(0, |text| self.counter.text(text));
        let fixed_tokens = system + shown.sum::<u64>();
        Ok(AgentLoop(Arc::new(Parts {
            model: self.model,
            toolbox,
            hooks: self.hooks,
            rules: self.rules,
            system: self.system.map(Arc::from),
            tool_choice: self.tool_choice,
            temperature: self.temperature,
            stream: self.stream,
            retry: self.retry,
            counter: self.counter,
            redactor: self.redactor,
            unauthorized_is_fatal: self.unauthorized_is_fatal,
            parallel_tools: self.parallel_tools,
            fixed_tokens,
        })))
    }
}

impl std::fmt::Debug for AgentLoopBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentLoopBuilder")
            .field("tools", &self.tools)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
