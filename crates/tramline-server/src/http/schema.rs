//! What the description says of values that are more than their Rust types tell: names, patterns, starts, spans of time.

use crate::http::emit::{EventIn, MAX_DELAY_MS, MAX_EVENTS};
use tramline::model::name::MAX_NAME;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{ArrayBuilder, KnownFormat, Ref, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

/// The name of a topic or subscription.
pub(crate) struct Name;

impl PartialSchema for Name {
    fn schema() -> RefOr<Schema> {
        text("^[A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*$", MAX_NAME, "acme/orders")
    }
}

impl ToSchema for Name {}

const PATTERN: &str = r"^(\*\*|(\*|[A-Za-z0-9._:-]+)(/(\*|[A-Za-z0-9._:-]+))*(/\*\*)?)$";

/// A name in which a segment may be `*`, and the last one `**`.
pub(crate) struct Pattern;

impl PartialSchema for Pattern {
    fn schema() -> RefOr<Schema> {
        text(PATTERN, MAX_NAME, "acme/**")
    }
}

impl ToSchema for Pattern {}

/// The name of a token.
pub(crate) struct TokenName;

impl PartialSchema for TokenName {
    fn schema() -> RefOr<Schema> {
        text("^[A-Za-z0-9._:@-]+$", 100, "shop")
    }
}

impl ToSchema for TokenName {}

/// Where a subscription starts.
pub(crate) struct Start;

impl PartialSchema for Start {
    fn schema() -> RefOr<Schema> {
        let string = || ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
        let word = string().enum_values(Some(["beginning", "now"]));
        let time = string().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
        OneOfBuilder::new().item(word).item(time).into()
    }
}

impl ToSchema for Start {}

/// One condition of a filter.
pub(crate) struct Condition;

impl PartialSchema for Condition {
    fn schema() -> RefOr<Schema> {
        let string = || ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
        let field = || string().pattern(Some(r"^(topic|type|key|header\..+|payload\.[^.]+(\.[^.]+)*)$"));
        let with = |name: &str, test: RefOr<Schema>| {
            let object = ObjectBuilder::new().property("field", field()).property(name, test);
            let none = AdditionalProperties::FreeForm(false);
            object.required("field").required(name).additional_properties(Some(none))
        };
        let any = || ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        let text = || string().max_length(Some(512));
        let list = |items: ObjectBuilder| {
            ArrayBuilder::new().items(items).min_items(Some(1)).max_items(Some(256)).build()
        };
        let prefix = OneOfBuilder::new().item(text()).item(list(text()));
        let pattern = || string().max_length(Some(MAX_NAME)).pattern(Some(PATTERN));
        let matches = OneOfBuilder::new().item(pattern()).item(list(pattern()));
        OneOfBuilder::new()
            .item(with("equals", any().into()))
            .item(with("in", list(any()).into()))
            .item(with("prefix", prefix.into()))
            .item(with("matches", matches.into()))
            .into()
    }
}

impl ToSchema for Condition {}

/// Milliseconds, up to a hundred years.
pub(crate) struct Millis;

impl PartialSchema for Millis {
    fn schema() -> RefOr<Schema> {
        millis(0)
    }
}

impl ToSchema for Millis {}

/// Milliseconds, and not none.
pub(crate) struct TimeLimit;

impl PartialSchema for TimeLimit {
    fn schema() -> RefOr<Schema> {
        millis(1)
    }
}

impl ToSchema for TimeLimit {}

/// How many entries a list shall have: what is out of reason is brought within, so that every number goes.
pub(crate) struct Limit;

impl PartialSchema for Limit {
    fn schema() -> RefOr<Schema> {
        let integer = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
        integer.minimum(Some(0)).maximum(Some(u32::MAX)).into()
    }
}

impl ToSchema for Limit {}

/// Bytes as they are.
pub(crate) struct Raw;

impl PartialSchema for Raw {
    fn schema() -> RefOr<Schema> {
        let string = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
        string.format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary))).into()
    }
}

impl ToSchema for Raw {}

/// One event or many, for the description: what comes is read by its first byte.
pub(crate) struct EmitBody;

impl PartialSchema for EmitBody {
    fn schema() -> RefOr<Schema> {
        let one = || Ref::from_schema_name(EventIn::name());
        let many = ArrayBuilder::new().items(one()).min_items(Some(1)).max_items(Some(MAX_EVENTS));
        OneOfBuilder::new().item(one()).item(many).into()
    }
}

impl ToSchema for EmitBody {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((EventIn::name().into(), EventIn::schema()));
        EventIn::schemas(schemas);
    }
}

fn millis(least: u64) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Integer))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(least))
        .maximum(Some(MAX_DELAY_MS))
        .into()
}

fn text(pattern: &str, most: usize, example: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .min_length(Some(1))
        .max_length(Some(most))
        .pattern(Some(pattern))
        .examples([example])
        .into()
}
