//! The admin API as an OpenAPI document, made from its table.

use serde_json::{Map, Value, json};

use super::route::{ROWS, Row};

pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for row in ROWS {
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[row.method.name().to_lowercase()] = operation(row);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Maitre admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What an operator can see and change of a running router. Times are milliseconds, sizes tokens, ratios from 0 to 1; null means that nobody knows.",
        },
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer", "description": "The admin key: `admin_key` in the settings, or the one that was printed at the start." } },
            "schemas": schemas(),
        },
    })
}

fn operation(row: &Row) -> Value {
    let parameters: Vec<Value> = path_parameter(row)
        .into_iter()
        .chain(row.query.iter().map(|(name, what)| {
            json!({ "name": name, "in": "query", "required": false, "description": what, "schema": { "type": "string" } })
        }))
        .collect();
    let media = if row.gives == "Live" { "text/event-stream" } else { "application/json" };
    let error = json!({ "description": "Why not", "content": { "application/json": { "schema": reference("Error") } } });
    let mut operation = json!({
        "operationId": format!("{:?}{}", row.action, if row.path.starts_with("/admin/v1") { "" } else { "Short" }),
        "summary": row.does,
        "parameters": parameters,
        "responses": {
            "2XX": { "description": "Done", "content": { media: { "schema": reference(row.gives) } } },
            "401": error.clone(),
            "4XX": error,
        },
    });
    if let Some(schema) = row.takes {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": reference(schema) } } });
    }
    operation
}

fn path_parameter(row: &Row) -> Option<Value> {
    let (_, rest) = row.path.split_once('{')?;
    let (name, _) = rest.split_once('}')?;
    Some(json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn schemas() -> Value {
    let object = |what: &str| json!({ "type": "object", "description": what });
    let list = |name: &str, of: Value| json!({ "type": "object", "required": [name], "properties": { name: { "type": "array", "items": of } } });
    json!({
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": { "error": { "type": "object", "required": ["code", "message"], "properties": { "code": { "type": "string" }, "message": { "type": "string" } } } },
        },
        "Overview": object("`workers`, `queue`, `totals`, `now`, `prediction`, `shadows`, `prefixes`, `cluster`, and how the router is."),
        "History": object("Lists of equal length, oldest first: `at_ms` and what was measured then; `waiting` has one list a class."),
        "Live": { "type": "string", "description": "Events `overview` and `decisions`." },
        "Decision": object("Who was asked, what each would have cost and why, who was chosen, and what came of it."),
        "Decisions": list("decisions", reference("Decision")),
        "Request": object("The body of a request, as a client would send it."),
        "Worker": object("State, load, learned rates and trust of one worker."),
        "Workers": list("workers", reference("Worker")),
        "NewWorker": { "type": "object", "required": ["url"], "properties": { "url": { "type": "string", "examples": ["http://10.0.0.9:8000?events=5557"] } } },
        "Removed": { "type": "object", "required": ["removed"], "properties": { "removed": { "type": "string" } } },
        "Weight": { "type": "object", "required": ["weight"], "properties": { "weight": { "type": "number", "minimum": 0.01, "maximum": 100 } } },
        "Strategies": object("`known`: all names; `strategy`: the one in use; `strategies`: models that go by another."),
        "Strategy": { "type": "object", "properties": { "strategy": { "type": "string" }, "strategies": { "type": "object", "additionalProperties": { "type": "string" } } } },
        "Config": { "type": "object", "required": ["toml"], "properties": { "toml": { "type": "string" } } },
        "Reloaded": object("`changed`: keys that took effect; `restart`: keys that take effect at the next start; `added` and `removed`: workers."),
        "Index": object("`bytes`, and of each worker the blocks it holds."),
        "Cluster": json!({ "type": ["object", "null"], "description": "`via`, `name`, `connected`, `trouble`, `warm`, `limit_share`, and all `routers`; null where there is one router only." }),
        "Log": { "type": "object", "required": ["level"], "properties": { "level": { "type": "string", "examples": ["info", "maitre_proxy=debug"] } } },
        "Document": object("OpenAPI 3.1."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_there_and_every_schema_it_names() {
        let document = document();
        let text = document.to_string();
        for row in ROWS {
            assert!(
                document["paths"][row.path][row.method.name().to_lowercase()].is_object(),
                "{}",
                row.path
            );
            for schema in row.takes.into_iter().chain([row.gives]) {
                assert!(document["components"]["schemas"][schema].is_object(), "{schema}");
            }
        }
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for name in schemas.keys() {
            assert!(text.contains(&format!("#/components/schemas/{name}\"")), "nobody uses {name}");
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let mut names: Vec<&str> = paths
            .values()
            .flat_map(|it| it.as_object().unwrap().values())
            .map(|it| it["operationId"].as_str().unwrap())
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
