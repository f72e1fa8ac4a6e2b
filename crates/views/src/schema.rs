//! What JSON a view becomes, as data, declared together with the struct by `view!`.
//!
//! ```ignore
//! view! {
//!     /// The routers of one cluster.
//!     ClusterView {
//!         name: Text,
//!         ..
//!         /// What is wrong, if an operator has to act.
//!         error: Option<Text>,
//!     }
//! }
//! ```
//!
//! This declares `pub struct ClusterView` with its `Serialize` and `Deserialize`, and its `View::SHAPE` with the same
//! field names, types and doc comments. The router always sends every field. A reader requires those before the `..`,
//! which distinguish this API from another. The others get their default if a router of another version lacks them.

use std::collections::BTreeMap;

/// The JSON of a type.
#[derive(Clone, Copy, Debug)]
pub enum JsonShape {
    Boolean,
    Integer,
    Number,
    Text,
    Nullable(&'static JsonShape),
    List(&'static JsonShape),
    /// An object with any keys, and values of one shape.
    Map(&'static JsonShape),
    Object(&'static ObjectShape),
}

/// A struct as a JSON object.
#[derive(Debug)]
pub struct ObjectShape {
    pub name: &'static str,
    pub doc: &'static str,
    /// An object whose fields this one has too.
    pub base: Option<&'static ObjectShape>,
    pub fields: &'static [FieldShape],
}

#[derive(Debug)]
pub struct FieldShape {
    pub name: &'static str,
    pub doc: &'static str,
    pub shape: &'static JsonShape,
}

/// A type that the admin API sends or takes.
pub trait View {
    const SHAPE: &'static JsonShape;
}

impl JsonShape {
    /// The object at the core of this shape: itself, or the one it lists or may lack.
    pub fn object(&self) -> Option<&'static ObjectShape> {
        match self {
            JsonShape::Object(object) => Some(object),
            JsonShape::Nullable(inner) | JsonShape::List(inner) | JsonShape::Map(inner) => inner.object(),
            JsonShape::Boolean | JsonShape::Integer | JsonShape::Number | JsonShape::Text => None,
        }
    }
}

impl ObjectShape {
    /// Objects that this one is made of.
    pub fn parts(&self) -> impl Iterator<Item = &'static ObjectShape> {
        self.base.into_iter().chain(self.fields.iter().filter_map(|it| it.shape.object()))
    }
}

macro_rules! shapes {
    ($($shape:ident: $($type:ty),*;)*) => {
        $($(impl View for $type {
            const SHAPE: &'static JsonShape = &JsonShape::$shape;
        })*)*
    };
}

shapes! {
    Boolean: bool;
    Integer: u32, u64;
    Number: f64;
    Text: String, crate::text::Text;
}

impl<T: View> View for Option<T> {
    const SHAPE: &'static JsonShape = &JsonShape::Nullable(T::SHAPE);
}

impl<T: View> View for Vec<T> {
    const SHAPE: &'static JsonShape = &JsonShape::List(T::SHAPE);
}

impl<K, T: View> View for BTreeMap<K, T> {
    const SHAPE: &'static JsonShape = &JsonShape::Map(T::SHAPE);
}

/// Declares views, one after the other. `Name { fields }`; `Name(part: Base) { fields }` also has the fields of `Base`,
/// in its field `part`; `Name [deny_unknown_fields]` is a request. `field as "name": Type` is called `name` on the wire.
macro_rules! view {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@base) => { None };
    (@base $base:ident) => { Some($base::OBJECT) };
    (@one
        $(#[doc = $doc:literal])*
        $name:ident $(($part:ident : $base:ident))? $([$container:ident])? {
            $(
                $(#[doc = $must_doc:literal])*
                $must:ident $(as $must_name:literal)? : $must_type:ty,
            )*
            $(
                ..
                $(
                    $(#[doc = $may_doc:literal])*
                    $may:ident $(as $may_name:literal)? : $may_type:ty,
                )*
            )?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        $(#[serde($container)])?
        pub struct $name {
            $(#[serde(flatten)] pub $part: $base,)?
            $(
                $(#[doc = $must_doc])*
                $(#[serde(rename = $must_name)])?
                pub $must: $must_type,
            )*
            $($(
                $(#[doc = $may_doc])*
                $(#[serde(rename = $may_name)])?
                #[serde(default)]
                pub $may: $may_type,
            )*)?
        }

        impl $crate::schema::View for $name {
            const SHAPE: &'static $crate::schema::JsonShape = &$crate::schema::JsonShape::Object(Self::OBJECT);
        }

        impl $name {
            pub const OBJECT: &'static $crate::schema::ObjectShape = &$crate::schema::ObjectShape {
                name: stringify!($name),
                doc: concat!($($doc),*),
                base: view!(@base $($base)?),
                fields: &[
                    $($crate::schema::FieldShape {
                        name: view!(@name $must $($must_name)?),
                        doc: concat!($($must_doc),*),
                        shape: <$must_type as $crate::schema::View>::SHAPE,
                    },)*
                    $($($crate::schema::FieldShape {
                        name: view!(@name $may $($may_name)?),
                        doc: concat!($($may_doc),*),
                        shape: <$may_type as $crate::schema::View>::SHAPE,
                    },)*)?
                ],
            };
        }
    };
    ($(
        $(#[doc = $doc:literal])*
        $name:ident $(($part:ident : $base:ident))? $([$container:ident])? { $($fields:tt)* }
    )*) => {
        $(view! { @one $(#[doc = $doc])* $name $(($part: $base))? $([$container])? { $($fields)* } })*
    };
}

pub(crate) use view;
