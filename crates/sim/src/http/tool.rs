//! Tool calls: a request that requires one gets one, with arguments that fit the tool's schema.
//!
//! The arguments are the simplest value of each type: enough for a client's parser and validation. A request that
//! merely offers tools gets a text.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::api_format::ApiFormat;
use super::error::ApiError;

/// Schemas deeper than this get an empty object: they are input, and recursion needs a bound.
const DEPTH_MAX: u32 = 8;

/// A call that will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    /// JSON.
    pub(super) arguments: String,
}

/// A tool, nested as in chat or flat as in the other APIs.
#[derive(Deserialize)]
struct Tool {
    function: Option<ToolFunction>,
    #[serde(flatten)]
    flat: ToolFunction,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolFunction {
    name: String,
    parameters: Value,
    input_schema: Value,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ToolChoice {
    Word(String),
    Named {
        #[serde(rename = "type")]
        kind: String,
        name: Option<String>,
        function: Option<ToolFunction>,
    },
}

/// The call that `tool_choice` requires, if any.
pub(super) fn forced(
    api: ApiFormat,
    tools: Option<&RawValue>,
    choice: Option<&RawValue>,
) -> Result<Option<ToolCall>, ApiError> {
    let Some(choice) = choice else { return Ok(None) };
    let wanted = match serde_json::from_str(choice.get())? {
        ToolChoice::Word(word) if word == "required" => None,
        ToolChoice::Named { kind, .. } if kind == "any" => None,
        ToolChoice::Word(_) => return Ok(None),
        ToolChoice::Named { name, function, .. } => match function.map(|it| it.name).or(name) {
            Some(name) => Some(name),
            None => return Ok(None),
        },
    };
    if !matches!(api, ApiFormat::Chat | ApiFormat::Messages) {
        return Err(ApiError::bad_request(
            "tool_choice: forced calls are simulated for chats and messages only",
        ));
    }
    let tools: Vec<Tool> = tools.map_or(Ok(Vec::new()), |it| serde_json::from_str(it.get()))?;
    let mut functions = tools.into_iter().map(|it| it.function.unwrap_or(it.flat));
    let function = match &wanted {
        None => functions.next(),
        Some(name) => functions.find(|it| it.name == *name),
    };
    let function =
        function.ok_or_else(|| ApiError::bad_request("tool_choice: there is no such tool in `tools`"))?;
    let schema = if function.parameters.is_null() { &function.input_schema } else { &function.parameters };
    Ok(Some(ToolCall { arguments: object(schema, 0).to_string(), name: function.name }))
}

fn object(schema: &Value, depth: u32) -> Value {
    let properties = schema["properties"].as_object();
    let members = properties.into_iter().flatten().map(|(name, it)| (name.clone(), value(it, depth + 1)));
    Value::Object(members.collect::<Map<_, _>>())
}

fn value(schema: &Value, depth: u32) -> Value {
    if depth > DEPTH_MAX {
        return json!({});
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => object(schema, depth),
        Some("array") => json!([value(&schema["items"], depth + 1)]),
        Some("integer") => json!(7),
        Some("number") => json!(0.5),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        _ => json!("table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str = r#"[
        {"type":"function","function":{"name":"seat","parameters":{"type":"object","properties":
            {"guests":{"type":"integer"},"where":{"enum":["inside","outside"]},"tags":{"type":"array","items":{"type":"string"}}}}}},
        {"name":"bill","input_schema":{"properties":{"split":{"type":"boolean"}}}}]"#;

    #[track_caller]
    fn check(choice: &str, expected: Option<(&str, &str)>) {
        let (tools, choice) = (TOOLS.to_owned(), choice.to_owned());
        let (tools, choice) = (RawValue::from_string(tools).unwrap(), RawValue::from_string(choice).unwrap());
        let call = forced(ApiFormat::Chat, Some(&tools), Some(&choice)).unwrap();
        let expected = expected
            .map(|(name, arguments)| ToolCall { name: name.to_owned(), arguments: arguments.to_owned() });
        assert_eq!(call, expected);
    }

    #[test]
    fn a_required_call_fits_the_schema() {
        let seat = Some(("seat", r#"{"guests":7,"tags":["table"],"where":"inside"}"#));
        check(r#""required""#, seat);
        check(r#"{"type":"any"}"#, seat);
        check(r#"{"type":"function","function":{"name":"seat"}}"#, seat);
        check(r#"{"type":"tool","name":"bill"}"#, Some(("bill", r#"{"split":true}"#)));
    }

    #[test]
    fn an_offered_tool_is_not_called() {
        check(r#""auto""#, None);
        check(r#""none""#, None);
        check(r#"{"type":"auto"}"#, None);
    }

    #[test]
    fn a_deep_schema_is_cut() {
        let mut schema = json!({"type": "string"});
        for _ in 0..50 {
            schema = json!({"type": "array", "items": schema});
        }
        assert!(value(&schema, 0).to_string().len() < 50);
    }
}
