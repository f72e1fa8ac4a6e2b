//! A model's chat template, run as transformers runs it.
//!
//! Templates are written for Jinja2 in Python and rely on it: methods of strings, `json.dumps`, blocks trimmed of
//! their white space. `python` makes the engine used here do the same. `format` detects, as vLLM does, whether a
//! template takes the content of a message as a text or as parts.
//!
//! A template comes from the operator, but it iterates over the client's data. It therefore has a step limit (fuel),
//! a recursion limit, a limit on its output, and one on the text that it builds on the way (`meter`).

mod format;
mod meter;
mod python;
mod tree;

use std::io;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use thiserror::Error;

use crate::chat::{Chat, Ending};
use crate::conversation::{self, BadChat, MessageShape};
use crate::date::Date;
use crate::encoder::EncodeError;
use crate::folder::{LoadError, ModelFolder};
use crate::options::{ModelOptions, RenderLimits};

/// Maximum depth of macros that call macros. Real templates stay below ten; the engine's own limit of 500 nearly
/// exhausts a thread's stack when every call goes through a filter of ours.
const RECURSION_LIMIT: usize = 100;

/// Why the template produced no text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    #[error("render the chat: the model has no chat template")]
    NoTemplate,
    /// The template called `raise_exception` with this text.
    #[error("render the chat: the template refuses: {why}")]
    Refused { why: String },
    #[error("render the chat: {why}")]
    Failed { why: String },
    #[error("render the chat: the text is longer than {limit_bytes} bytes")]
    TooLong { limit_bytes: usize },
    #[error("render the chat: it takes more than {fuel} steps")]
    TooMuchWork { fuel: u64 },
    #[error("render the chat: it builds more than {limit_bytes} bytes of text")]
    TooMuchText { limit_bytes: usize },
    #[error("continue the last message: {why}")]
    NothingToContinue { why: &'static str },
}

/// Why a chat has no prompt. Except for `Encode`, the request is invalid and the engine would reject it too.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RenderError {
    #[error(transparent)]
    BadChat(#[from] BadChat),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

pub(crate) struct Template {
    environment: Environment<'static>,
    /// Shapes of the templates `default` and `tool_use`.
    default: Option<MessageShape>,
    tool_use: Option<MessageShape>,
    /// The special tokens by name, and the operator's own variables: what every rendering starts with.
    variables: Vec<(String, Value)>,
    limits: RenderLimits,
}

/// The template that renders one chat, and its tools.
pub(crate) struct SelectedTemplate<'t> {
    template: &'t Template,
    name: &'static str,
    shape: MessageShape,
    tools: Option<Value>,
}

impl Template {
    pub(crate) fn new(
        path: &Path,
        folder: &ModelFolder,
        options: &ModelOptions,
    ) -> Result<Template, LoadError> {
        let mut environment = environment(options.limits);
        let mut shapes = [None, None];
        for (name, shape) in ["default", "tool_use"].into_iter().zip(&mut shapes) {
            let Some(source) = folder.templates.get(name) else { continue };
            let source = python::in_our_tags(source);
            let failed = |why: minijinja::Error| LoadError::Template {
                folder: path.to_owned(),
                name: name.to_owned(),
                why: in_full(&why),
            };
            *shape = Some(MessageShape {
                format: options.format.unwrap_or_else(|| format::detect(&source, environment.syntax())),
                knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            });
            if python::adds_to_safe(&source) {
                // Without the filter its chats are refused; with it they would be rendered wrong.
                environment.remove_filter("safe");
            }
            let unbounded =
                || failed(minijinja::Error::new(ErrorKind::SyntaxError, "its text cannot be metered"));
            // The engine's own error says what is wrong with a template that it cannot parse.
            environment.template_from_str(&source).map_err(failed)?;
            let metered = meter::metered(&source, environment.syntax()).ok_or_else(unbounded)?;
            environment.add_template_owned(name, metered).map_err(failed)?;
        }
        let mut variables: Vec<(String, Value)> =
            folder.names.iter().map(|it| (it.name.clone(), Value::from(it.content.as_str()))).collect();
        if let Some(arguments) = &options.arguments {
            let failed = |it: BadChat| LoadError::Arguments { why: it.to_string() };
            variables.extend(conversation::object("arguments", arguments).map_err(failed)?);
        }
        let [default, tool_use] = shapes;
        Ok(Template { environment, default, tool_use, variables, limits: options.limits })
    }

    pub(crate) fn pick(&self, chat: &Chat<'_>) -> Result<SelectedTemplate<'_>, RenderError> {
        let tools = conversation::tools(chat)?;
        let (name, shape) = match (self.tool_use, self.default) {
            (Some(shape), _) if tools.is_some() => ("tool_use", shape),
            (_, Some(shape)) => ("default", shape),
            _ => return Err(TemplateError::NoTemplate.into()),
        };
        Ok(SelectedTemplate { template: self, name, shape, tools })
    }
}

impl SelectedTemplate<'_> {
    pub(crate) fn shape(&self) -> MessageShape {
        self.shape
    }

    /// The text of these messages in this chat.
    pub(crate) fn render(&self, chat: &Chat<'_>, messages: &[Value]) -> Result<String, RenderError> {
        let variables = self.variables(chat)?;
        if chat.ending != Ending::Continue {
            return Ok(self.run(variables, messages.to_vec())?);
        }
        let (tagged, last) = python::tag_last(messages)?;
        let text = self.run(variables, tagged)?;
        Ok(python::cut_at_tag(text, &last)?)
    }

    fn run(
        &self,
        mut variables: Vec<(String, Value)>,
        messages: Vec<Value>,
    ) -> Result<String, TemplateError> {
        variables.push(("messages".to_owned(), messages.into()));
        let Template { environment, limits, .. } = self.template;
        let template = environment.get_template(self.name).map_err(|_| TemplateError::NoTemplate)?;
        let mut text = BoundedText { bytes: Vec::new(), limit: limits.text_bytes };
        meter::begin(limits.built_bytes);
        let done = template.render_captured_to(Value::from_pairs(variables), &mut text);
        done.map_err(|error| failure(&error, *limits))?;
        String::from_utf8(text.bytes).map_err(|error| TemplateError::Failed { why: error.to_string() })
    }

    /// In vLLM's order of precedence: later values override earlier ones.
    fn variables(&self, chat: &Chat<'_>) -> Result<Vec<(String, Value)>, BadChat> {
        let mut variables = self.template.variables.clone();
        let mut set = |name: &str, value: Value| variables.push((name.to_owned(), value));
        let asked = chat.arguments.map(|it| conversation::object("chat_template_kwargs", it)).transpose()?;
        let asked = asked.unwrap_or_default();
        let says_thinking = asked.iter().any(|it| it.0 == "enable_thinking");
        set("documents", Value::from(()));
        asked.into_iter().for_each(|(name, value)| set(&name, value));
        if let Some(documents) = conversation::documents(chat)? {
            set("documents", documents);
        }
        let effort =
            chat.reasoning_effort.map(|it| conversation::json("reasoning_effort", it)).transpose()?;
        if let Some(effort) = effort.filter(|it| !it.is_none()) {
            if !says_thinking {
                set("enable_thinking", Value::from(effort.as_str() != Some("none")));
            }
            set("reasoning_effort", effort);
        }
        set("tools", self.tools.clone().unwrap_or(Value::from(())));
        set("add_generation_prompt", Value::from(chat.ending == Ending::Answer));
        set("strftime_now", strftime_now(chat.today));
        Ok(variables)
    }
}

fn environment(limits: RenderLimits) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(RECURSION_LIMIT);
    python::teach(&mut environment);
    meter::teach(&mut environment);
    environment
}

fn strftime_now(today: Date) -> Value {
    Value::from_function(move |format: &str| {
        today
            .strftime(format)
            .map_err(|it| minijinja::Error::new(ErrorKind::InvalidOperation, it.to_string()))
    })
}

fn failure(error: &minijinja::Error, limits: RenderLimits) -> TemplateError {
    if let Some(why) = python::refusal(error) {
        return TemplateError::Refused { why };
    }
    if meter::is_overfull(error) {
        return TemplateError::TooMuchText { limit_bytes: limits.built_bytes };
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork { fuel: limits.fuel },
        ErrorKind::WriteFailure => TemplateError::TooLong { limit_bytes: limits.text_bytes },
        _ => TemplateError::Failed { why: in_full(error) },
    }
}

/// The error, its location and its cause. Never the values, which are parts of a prompt.
fn in_full(error: &minijinja::Error) -> String {
    error.to_string()
}

/// Accepts a text up to a length, and no more.
struct BoundedText {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for &mut BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
