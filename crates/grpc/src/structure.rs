//! JSON in protobuf's form (`google.protobuf.Struct`): how proxies pass metadata.

use std::collections::HashMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(List),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct List {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl Struct {
    /// An object with one field.
    pub fn of(name: &str, kind: Kind) -> Struct {
        Struct { fields: HashMap::from([(name.to_owned(), Value { kind: Some(kind) })]) }
    }

    pub fn get(&self, name: &str) -> Option<&Kind> {
        self.fields.get(name)?.kind.as_ref()
    }
}

impl Kind {
    pub fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Kind {
        let value = |it: T| Value { kind: Some(Kind::Text(it.into())) };
        Kind::List(List { values: texts.into_iter().map(value).collect() })
    }
}
