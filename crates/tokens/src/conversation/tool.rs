//! Tools, and calls of them, in vLLM's order of fields: templates print them as they stand.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::conversation::{items, member};

/// Reads one tool that a request offers.
pub(super) fn read(tool: &Value) -> Result<Value, &'static str> {
    let function = member(tool, "function").filter(|it| it.kind() == ValueKind::Map).ok_or("no function")?;
    match member(tool, "type") {
        None => {}
        Some(kind) if kind.as_str() == Some("function") => {}
        Some(_) => return Err("the type is not function"),
    }
    let name = member(&function, "name").filter(|it| it.kind() == ValueKind::String).ok_or("no name")?;
    let deferred = member(tool, "defer_loading");
    let or_none = |it: Option<Value>| it.unwrap_or(Value::from(()));
    let mut described = vec![
        ("name", name),
        ("description", or_none(member(&function, "description"))),
        ("parameters", or_none(member(&function, "parameters"))),
    ];
    described.extend(member(&function, "strict").map(|it| ("strict", it)));
    let function_deferred = member(&function, "defer_loading").or_else(|| deferred.clone());
    described.extend(function_deferred.map(|it| ("defer_loading", it)));
    let mut fields = vec![("type", Value::from("function")), ("function", Value::from_pairs(described))];
    fields.extend(deferred.map(|it| ("defer_loading", it)));
    Ok(Value::from_pairs(fields))
}

/// The calls an assistant made, or `None` when it made none.
pub(super) fn calls(message: &Value) -> Result<Option<Value>, &'static str> {
    let Some(calls) = member(message, "tool_calls") else { return Ok(None) };
    let calls = items(&calls).ok_or("tool_calls is no array")?;
    if calls.is_empty() {
        return Ok(None);
    }
    calls.iter().map(call).collect::<Result<Vec<Value>, _>>().map(|it| Some(it.into()))
}

fn call(call: &Value) -> Result<Value, &'static str> {
    if call.kind() != ValueKind::Map {
        return Err("a tool call is no object");
    }
    if member(call, "type").is_some_and(|it| it.as_str() != Some("function")) {
        return Err("a tool call's type is not function");
    }
    let function = member(call, "function")
        .filter(|it| it.kind() == ValueKind::Map)
        .ok_or("a tool call has no function")?;
    let mut described = vec![("arguments", arguments(&function)?)];
    described.extend(member(&function, "name").map(|it| ("name", it)));
    let mut fields = Vec::new();
    fields.extend(member(call, "id").map(|it| ("id", it)));
    fields.push(("function", Value::from_pairs(described)));
    fields.push(("type", Value::from("function")));
    Ok(Value::from_pairs(fields))
}

/// Arguments are sent as JSON text; templates expect the object. Anything else becomes an empty object.
fn arguments(function: &Value) -> Result<Value, &'static str> {
    let empty = || Value::from_pairs::<[(&str, Value); 0], _, _>([]);
    let Some(arguments) = member(function, "arguments") else { return Ok(empty()) };
    if arguments.kind() == ValueKind::Map {
        return Ok(arguments);
    }
    let Some(text) = arguments.as_str() else { return Ok(empty()) };
    match crate::json::read(text) {
        Ok(parsed) if parsed.kind() == ValueKind::Map => Ok(parsed),
        Ok(_) => Ok(empty()),
        Err(error) if python_reads(text, &error) => {
            Err("a tool call's arguments are JSON that only Python reads")
        }
        Err(_) => Ok(empty()),
    }
}

/// Whether Python's reader accepts what ours rejects: `NaN`, half a surrogate pair, numbers beyond a double and
/// nesting beyond our limit. The engine may then see an object where we see none, so we do not guess.
fn python_reads(text: &str, error: &serde_json::Error) -> bool {
    let why = error.to_string();
    let ours = ["recursion limit", "surrogate", "number out of range"];
    text.contains("NaN") || text.contains("Infinity") || ours.iter().any(|it| why.contains(it))
}
