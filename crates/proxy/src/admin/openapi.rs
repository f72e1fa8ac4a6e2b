//! The admin API as an OpenAPI document, from the table of routes and the shapes of the views.

use maitre_views::error::ErrorBody;
use maitre_views::schema::{FieldShape, JsonShape, ObjectShape, View as _};
use serde_json::{Map, Value, json};

use super::route::{Action, ROUTES, Route};

pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Maitre admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What an operator can see and change of a running router. Times are milliseconds, sizes tokens, ratios from 0 to 1; null means unknown.",
        },
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer", "description": "The admin key: `admin_key` in the settings, or the one printed at the start." } },
            "schemas": schemas(),
        },
    })
}

fn operation(route: &Route) -> Value {
    let parameters: Vec<Value> = path_parameter(route)
        .into_iter()
        .chain(route.query.iter().map(|(name, doc)| {
            json!({ "name": name, "in": "query", "required": false, "description": doc, "schema": { "type": "string" } })
        }))
        .collect();
    let media = if route.action == Action::Live { "text/event-stream" } else { "application/json" };
    let error = json!({ "description": "Refused", "content": { "application/json": { "schema": schema(ErrorBody::SHAPE) } } });
    let mut operation = json!({
        "operationId": format!("{:?}{}", route.action, if route.path.starts_with("/admin/v1") { "" } else { "Short" }),
        "summary": route.doc,
        "parameters": parameters,
        "responses": {
            "2XX": { "description": "Done", "content": { media: { "schema": schema(route.gives) } } },
            "401": error.clone(),
            "4XX": error,
        },
    });
    if let Some(shape) = route.takes {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema(shape) } } });
    }
    operation
}

fn path_parameter(route: &Route) -> Option<Value> {
    let (_, rest) = route.path.split_once('{')?;
    let (name, _) = rest.split_once('}')?;
    Some(json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
}

/// Every object that a route takes or gives, and what those are made of.
pub(crate) fn objects() -> Vec<&'static ObjectShape> {
    let named = ROUTES.iter().flat_map(|it| it.takes.into_iter().chain([it.gives]));
    let mut pending: Vec<&ObjectShape> =
        named.chain([ErrorBody::SHAPE]).filter_map(JsonShape::object).collect();
    let mut found: Vec<&ObjectShape> = Vec::new();
    while let Some(object) = pending.pop() {
        if !found.iter().any(|it| (it.name, it.doc) == (object.name, object.doc)) {
            pending.extend(object.parts());
            found.push(object);
        }
    }
    found
}

fn schemas() -> Map<String, Value> {
    objects().into_iter().map(|it| (it.name.to_owned(), object(it))).collect()
}

fn object(object: &ObjectShape) -> Value {
    let properties: Map<String, Value> =
        object.fields.iter().map(|it| (it.name.to_owned(), property(it))).collect();
    // The router sends every field. Of a request, one that may be null may be missing too.
    let is_request =
        ROUTES.iter().filter_map(|it| it.takes.and_then(JsonShape::object)).any(|it| it.name == object.name);
    let is_optional = |it: &FieldShape| is_request && matches!(it.shape, JsonShape::Nullable(_));
    let required: Vec<&str> = object.fields.iter().filter(|it| !is_optional(it)).map(|it| it.name).collect();
    let mut schema = json!({ "type": "object", "description": object.doc.trim(), "properties": properties });
    schema["required"] = json!(required);
    if let Some(base) = object.base {
        schema["allOf"] = json!([reference(base)]);
    }
    schema
}

fn property(field: &FieldShape) -> Value {
    let mut schema = schema(field.shape);
    if !field.doc.is_empty() {
        schema["description"] = json!(field.doc.trim());
    }
    schema
}

fn schema(shape: &JsonShape) -> Value {
    match shape {
        JsonShape::Boolean => json!({ "type": "boolean" }),
        JsonShape::Integer => json!({ "type": "integer" }),
        JsonShape::Number => json!({ "type": "number" }),
        JsonShape::Text => json!({ "type": "string" }),
        JsonShape::Nullable(inner) => json!({ "anyOf": [schema(inner), { "type": "null" }] }),
        JsonShape::List(inner) => json!({ "type": "array", "items": schema(inner) }),
        JsonShape::Map(inner) => json!({ "type": "object", "additionalProperties": schema(inner) }),
        JsonShape::Object(object) => reference(object),
    }
}

fn reference(object: &ObjectShape) -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", object.name) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_and_every_schema_it_names_is_in_the_document() {
        let document = document();
        let text = document.to_string();
        for route in ROUTES {
            let method = route.method.as_str().to_lowercase();
            assert!(document["paths"][route.path][method].is_object(), "{}", route.path);
        }
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let named = text.split("#/components/schemas/").skip(1).filter_map(|it| it.split('"').next());
        let named: BTreeSet<&str> = named.collect();
        assert_eq!(named, schemas.keys().map(String::as_str).collect());
        assert_eq!(objects().len(), schemas.len(), "two views have one name");
    }

    #[test]
    fn a_schema_has_the_fields_types_and_sentences_of_its_view() {
        let schemas = schemas();
        let cluster = &schemas["ClusterView"];
        assert_eq!(cluster["properties"]["connected"]["type"], "boolean");
        assert_eq!(cluster["properties"]["routers"]["items"]["$ref"], "#/components/schemas/RouterView");
        let error = &cluster["properties"]["error"];
        assert_eq!(error["anyOf"], json!([{ "type": "string" }, { "type": "null" }]));
        assert_eq!(error["description"], "What is wrong, if an operator has to act.");
        assert!(schemas["RouterView"]["properties"]["self"].is_object(), "its name on the wire");
        assert_eq!(schemas["StrategyChange"]["required"], json!([]));
        assert_eq!(schemas["DecisionDetail"]["allOf"][0]["$ref"], "#/components/schemas/DecisionSummary");
    }

    #[test]
    fn operation_ids_are_unique() {
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
