//! A model's chat template, run as transformers runs it.
//!
//! Templates are written for Jinja2 in Python and lean on it: methods of strings, `json.dumps`, blocks
//! trimmed of their white space. `python` teaches the engine here to do the same; `format` finds out, as
//! vLLM does, whether a template takes the content of a message as a text or as parts.
//!
//! A template is the operator's file, but what it loops over is the client's. So it runs on fuel, recursion
//! has a limit, and the text it writes has a length. What this does not stop is a template written to harm:
//! one that doubles a string forty times allocates before it writes.

mod format;
mod python;

use std::io;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use thiserror::Error;

use crate::chat::{Chat, Ending};
use crate::conversation::{self, BadChat};
use crate::date::Date;
use crate::folder::{Folder, LoadError};
use crate::model::{RenderError, Settings};

/// How a template takes the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As one text (vLLM's `string`).
    Text,
    /// As a list of parts, even when the client sent a text (vLLM's `openai`).
    Parts,
}

/// What a template expects of the messages it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) format: Format,
    pub(crate) knows_developer: bool,
}

/// What one rendering may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps of the template. A message takes some dozens; ten million are a fifth of a second or so.
    pub fuel: u64,
    /// The rendered text.
    pub text_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { fuel: 10_000_000, text_bytes: 32 << 20 }
    }
}

/// Macros calling macros. Real templates stay below ten; the engine's own limit of 500 is near the end of a
/// thread's stack when every call goes through a filter of ours.
const RECURSION_LIMIT: usize = 100;

/// The template gave no text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    #[error("render the chat: the model has no chat template")]
    NoTemplate,
    /// By `raise_exception`: the template's own words.
    #[error("render the chat: the template refuses: {why}")]
    Refused { why: String },
    #[error("render the chat: {why}")]
    Failed { why: String },
    #[error("render the chat: the text is longer than {limit_bytes} bytes")]
    TooLong { limit_bytes: usize },
    #[error("render the chat: it takes more than {fuel} steps")]
    TooMuchWork { fuel: u64 },
    #[error("continue the last message: {why}")]
    NothingToContinue { why: &'static str },
}

pub(crate) struct Template {
    environment: Environment<'static>,
    /// Shapes of the templates `default` and `tool_use`.
    default: Option<Shape>,
    tool_use: Option<Shape>,
    /// The special tokens by name, and the operator's own variables: what every rendering starts with.
    variables: Vec<(String, Value)>,
    limits: Limits,
}

/// The template one chat goes through, and its tools.
pub(crate) struct Picked<'t> {
    template: &'t Template,
    name: &'static str,
    shape: Shape,
    tools: Option<Value>,
}

impl Template {
    pub(crate) fn new(path: &Path, folder: &Folder, settings: &Settings) -> Result<Template, LoadError> {
        let mut environment = environment(settings.limits);
        let mut shapes = [None, None];
        for (name, shape) in ["default", "tool_use"].into_iter().zip(&mut shapes) {
            let Some(source) = folder.templates.get(name) else { continue };
            let source = python::in_our_tags(source);
            let failed = |why: minijinja::Error| LoadError::Template {
                folder: path.to_owned(),
                name: name.to_owned(),
                why: in_full(&why),
            };
            *shape = Some(Shape {
                format: settings.format.unwrap_or_else(|| format::detect(&source, environment.syntax())),
                knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            });
            if python::adds_to_safe(&source) {
                // Without the filter its chats are refused, where they would be rendered wrong.
                environment.remove_filter("safe");
            }
            environment.add_template_owned(name, source).map_err(failed)?;
        }
        let mut variables: Vec<(String, Value)> =
            folder.names.iter().map(|it| (it.name.clone(), Value::from(it.content.as_str()))).collect();
        if let Some(arguments) = &settings.arguments {
            let failed = |it: BadChat| LoadError::Arguments { why: it.to_string() };
            variables.extend(conversation::object("arguments", arguments).map_err(failed)?);
        }
        let [default, tool_use] = shapes;
        Ok(Template { environment, default, tool_use, variables, limits: settings.limits })
    }

    pub(crate) fn pick(&self, chat: &Chat<'_>) -> Result<Picked<'_>, RenderError> {
        let tools = conversation::tools(chat)?;
        let (name, shape) = match (self.tool_use, self.default) {
            (Some(shape), _) if tools.is_some() => ("tool_use", shape),
            (_, Some(shape)) => ("default", shape),
            _ => return Err(Failure::NoTemplate.into()),
        };
        Ok(Picked { template: self, name, shape, tools })
    }
}

impl Picked<'_> {
    pub(crate) fn shape(&self) -> Shape {
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

    fn run(&self, mut variables: Vec<(String, Value)>, messages: Vec<Value>) -> Result<String, Failure> {
        variables.push(("messages".to_owned(), messages.into()));
        let Template { environment, limits, .. } = self.template;
        let template = environment.get_template(self.name).map_err(|_| Failure::NoTemplate)?;
        let mut text = Bounded { bytes: Vec::new(), limit: limits.text_bytes };
        let done = template.render_captured_to(Value::from_pairs(variables), &mut text);
        done.map_err(|error| failure(&error, *limits))?;
        String::from_utf8(text.bytes).map_err(|error| Failure::Failed { why: error.to_string() })
    }

    /// In vLLM's order of precedence: what comes later overrules.
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

fn environment(limits: Limits) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(RECURSION_LIMIT);
    python::teach(&mut environment);
    environment
}

fn strftime_now(today: Date) -> Value {
    Value::from_function(move |format: &str| {
        today
            .strftime(format)
            .map_err(|it| minijinja::Error::new(ErrorKind::InvalidOperation, it.to_string()))
    })
}

fn failure(error: &minijinja::Error, limits: Limits) -> Failure {
    if let Some(why) = python::refusal(error) {
        return Failure::Refused { why };
    }
    match error.kind() {
        ErrorKind::OutOfFuel => Failure::TooMuchWork { fuel: limits.fuel },
        ErrorKind::WriteFailure => Failure::TooLong { limit_bytes: limits.text_bytes },
        _ => Failure::Failed { why: in_full(error) },
    }
}

/// The error, where it happened, and what caused it. Never the values: they are somebody's prompt.
fn in_full(error: &minijinja::Error) -> String {
    error.to_string()
}

/// Takes a text up to a length, and no more.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for &mut Bounded {
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
