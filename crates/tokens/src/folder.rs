//! A model's folder as Hugging Face lays it out: which files, in which order of precedence.
//!
//! It reads only files that decide the ids of a prompt: `tokenizer.json`, the names and flags in
//! `tokenizer_config.json`, and the chat templates, in any place where models keep them. Names that the configuration
//! lacks come from the older `special_tokens_map.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokenizers::AddedToken;

/// Why a model's folder cannot be used: which file, and what is wrong with it.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("read {}: larger than {limit_bytes} bytes", path.display())]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error("read {}: {source}", path.display())]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error("load the tokenizer in {}: {why}", path.display())]
    Tokenizer { path: PathBuf, why: String },
    #[error("compile the chat template {name:?} of {}: {why}", folder.display())]
    Template { folder: PathBuf, name: String, why: String },
    #[error("read the default template arguments: {why}")]
    Arguments { why: String },
}

/// The largest tokenizers ship about 35 MB; this is room for the next ones.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub(crate) struct ModelFolder {
    pub(crate) tokenizer: Vec<u8>,
    pub(crate) config: TokenizerConfig,
    pub(crate) names: Vec<SpecialToken>,
    /// The architecture, by `config.json`.
    pub(crate) model_type: Option<String>,
    /// By name; a model with one template has it under `default`.
    pub(crate) templates: BTreeMap<String, String>,
}

/// `tokenizer_config.json`, as far as it changes ids.
///
/// Not `add_bos_token` and `add_eos_token`: transformers ignores them if there is a `tokenizer.json`, which alone
/// decides what surrounds a text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerConfig {
    pub(crate) chat_template: Option<Templates>,
    pub(crate) tokenizer_class: Option<String>,
    pub(crate) legacy: Option<bool>,
    pub(crate) add_prefix_space: Option<bool>,
    pub(crate) split_special_tokens: bool,
    pub(crate) added_tokens_decoder: BTreeMap<String, AddedToken>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// A special token a template can call by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpecialToken {
    pub(crate) name: String,
    pub(crate) content: String,
}

/// The names every model may have, in the order transformers keeps them; a model's own come after.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

#[derive(Deserialize)]
struct ModelConfig {
    model_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedTemplate {
    name: String,
    template: String,
}

impl ModelFolder {
    pub(crate) fn read(path: &Path) -> Result<ModelFolder, LoadError> {
        let tokenizer_path = path.join("tokenizer.json");
        let tokenizer = read(&tokenizer_path)?;
        let tokenizer = tokenizer.ok_or_else(|| LoadError::Read {
            path: tokenizer_path,
            source: io::Error::new(io::ErrorKind::NotFound, "no such file"),
        })?;
        let mut config: TokenizerConfig = json(&path.join("tokenizer_config.json"))?.unwrap_or_default();
        let older = json(&path.join("special_tokens_map.json"))?.unwrap_or_default();
        let names = config.names(&older);
        let templates = templates(path, config.chat_template.take())?;
        let model_type = json::<ModelConfig>(&path.join("config.json"))?.and_then(|it| it.model_type);
        Ok(ModelFolder { tokenizer, config, names, templates, model_type })
    }
}

impl TokenizerConfig {
    /// Named special tokens; for those that the configuration lacks, from the older file.
    fn names(&self, older: &BTreeMap<String, Value>) -> Vec<SpecialToken> {
        let own = self.others.keys().filter(|it| it.ends_with("_token") && !NAMES.contains(&it.as_str()));
        let names = NAMES.into_iter().chain(own.map(String::as_str));
        let named = |name: &str| {
            let content = [&self.others, older].into_iter().find_map(|it| content(it.get(name)?))?;
            Some(SpecialToken { name: name.to_owned(), content })
        };
        names.filter_map(named).collect()
    }
}

/// A token is written as its text, or as an object that holds it.
fn content(token: &Value) -> Option<String> {
    let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
    Some(text.to_owned()).filter(|it| !it.is_empty())
}

/// Separate files come first; they replace what the configuration says, as in transformers.
fn templates(path: &Path, configured: Option<Templates>) -> Result<BTreeMap<String, String>, LoadError> {
    let mut found = BTreeMap::new();
    if let Some(text) = text(&path.join("chat_template.jinja"))? {
        found.insert("default".to_owned(), text);
    }
    if let Some(text) = text(&path.join("additional_chat_templates/tool_use.jinja"))? {
        found.insert("tool_use".to_owned(), text);
    }
    if !found.is_empty() {
        return Ok(found);
    }
    Ok(match configured {
        Some(Templates::One(text)) => BTreeMap::from([("default".to_owned(), text)]),
        Some(Templates::Named(list)) => list.into_iter().map(|it| (it.name, it.template)).collect(),
        None => processor_template(path)?.map(|it| ("default".to_owned(), it)).into_iter().collect(),
    })
}

/// Models that see images may keep the template with their processor.
fn processor_template(path: &Path) -> Result<Option<String>, LoadError> {
    #[derive(Deserialize)]
    struct ProcessorConfig {
        chat_template: Option<String>,
    }
    Ok(json::<ProcessorConfig>(&path.join("chat_template.json"))?.and_then(|it| it.chat_template))
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|source| LoadError::NotJson { path: path.to_owned(), source })
}

fn text(path: &Path) -> Result<Option<String>, LoadError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let not_utf8 = |_| LoadError::Read {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"),
    };
    // Python opens templates as text, where every line end is one line feed.
    String::from_utf8(bytes).map_err(not_utf8).map(|it| Some(it.replace("\r\n", "\n").replace('\r', "\n")))
}

/// The file's bytes, or `None` when there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let bytes = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if bytes > FILE_BYTES_MAX {
        return Err(LoadError::TooLarge { path: path.to_owned(), limit_bytes: FILE_BYTES_MAX });
    }
    fs::read(path).map(Some).map_err(failed)
}
