//! Filters in SQL let the same events pass as those of the library.

use crate::bed::{Private, ids};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use tramline::Event;
use tramline::model::filter::Filter;
use tramline::model::id::EventId;
use tramline::model::subscription::{Ordering, Policy};

const JSON: &str = "application/json";

fn filters() -> Vec<Value> {
    let one = |field: &str, test: &str, value: Value| json!([{"field": field, test: value}]);
    vec![
        json!([]),
        one("type", "equals", json!("order.paid")),
        one("type", "prefix", json!(["mail.", "order."])),
        one("type", "in", json!(["", "order.open"])),
        one("key", "prefix", json!("")),
        one("key", "in", json!(["order:1", "order:2"])),
        one("header.region", "equals", json!("eu")),
        one("header.region", "prefix", json!("e%")),
        one("payload.country", "in", json!(["AT", 7, null])),
        one("payload.total", "equals", json!(12.0)),
        one("payload.total", "equals", json!("12")),
        one("payload.total", "prefix", json!("1")),
        one("payload.lines.0.sku", "prefix", json!("b-")),
        one("payload.lines.-1.sku", "prefix", json!("b-")),
        one("payload.lines.x", "equals", json!(1)),
        one("payload.lines", "equals", json!([{"sku": "b-7"}])),
        one("payload.country.deep", "equals", json!("AT")),
        one("payload.0", "equals", json!("first")),
        one("payload.none", "equals", json!(false)),
        json!([{"field": "type", "prefix": "order."}, {"field": "payload.country", "equals": "AT"}]),
        one("topic", "equals", json!("acme")),
        one("topic", "matches", json!("acme/*")),
        one("topic", "matches", json!("acme/**")),
        one("topic", "matches", json!(["*/orders", "*"])),
        one("topic", "matches", json!("acm/**")),
        one("type", "matches", json!("order.paid")),
        one("type", "matches", json!("order.pai.")),
        one("type", "matches", json!("*")),
        one("key", "matches", json!("**")),
        one("key", "matches", json!("*")),
        one("key", "matches", json!(["order:1", "a/*/c"])),
        one("header.region", "matches", json!("*/**")),
        one("payload.country", "matches", json!("*")),
        one("payload.total", "matches", json!("12")),
    ]
}

/// An event of which every part can be read again.
struct Draft {
    topic: &'static str,
    kind: &'static str,
    key: Option<&'static str>,
    region: Option<&'static str>,
    payload: Vec<u8>,
    content_type: &'static str,
}

impl Draft {
    fn event(&self) -> Event {
        let event =
            Event::new(self.topic, self.payload.clone()).kind(self.kind).content_type(self.content_type);
        let event = self.key.into_iter().fold(event, Event::key);
        self.region.into_iter().fold(event, |event, region| event.header("region", region))
    }
}

fn drafts() -> Vec<Draft> {
    let raw = |payload: &[u8], content_type| {
        let (kind, key, region) = ("order.paid", Some("order:1"), None);
        Draft { topic: "acme/orders", kind, key, region, payload: payload.to_vec(), content_type }
    };
    let json = |kind, key, region, payload: Value| {
        let payload = payload.to_string().into_bytes();
        Draft { topic: "acme", kind, key, region, payload, content_type: JSON }
    };
    vec![
        raw(b"payload", "application/octet-stream"),
        raw(b"{\"country\": \"AT\"", JSON),
        raw(&[0xff, 0x00], JSON),
        raw(b"{\"country\": \"AT\"}", "text/plain"),
        json(
            "order.paid",
            Some("order:1"),
            None,
            json!({"country": "AT", "total": 12, "lines": [{"sku": "b-7"}]}),
        ),
        json("order.open", None, Some("eu"), json!({"country": "DE", "total": 12.0, "lines": []})),
        json("mail.sent", Some("x"), Some("e%u"), json!({"country": 7, "total": "12", "none": false})),
        json("", None, None, json!({"country": null, "total": 13, "lines": {"-1": {"sku": "b-7"}, "x": 1}})),
        json("", None, None, json!(["first", "second"])),
        json("", None, None, json!("text")),
        json("order/paid", Some("a/b\nb/c"), Some("eu/west"), json!({"country": "AT/Tyrol"})),
        json("orderxpaid", Some("a/b/c/d"), Some(""), json!({"country": ""})),
    ]
}

#[tokio::test]
async fn sql_filters_like_the_library() {
    let store = Private::open().await;
    let pool = store.pool().await;
    let sql = format!("SELECT {}.tramline_passes($1::jsonb, $2, $3, $4, $5::jsonb, $6, $7)", store.schema);
    for written in filters() {
        let filter: Filter = serde_json::from_value(written.clone()).unwrap();
        for draft in drafts() {
            let query = sqlx::query(AssertSqlSafe(sql.clone()))
                .bind(serde_json::to_string(&filter).unwrap())
                .bind(draft.topic)
                .bind(draft.kind)
                .bind(draft.key)
                .bind(draft.region.map(|region| json!({"region": region}).to_string()))
                .bind(&draft.payload)
                .bind(draft.content_type);
            let passes: bool = query.fetch_one(&pool).await.unwrap().get(0);
            let event = draft.event();
            assert_eq!(passes, filter.passes(&event), "{written} and {event:?}");
        }
    }
    store.close().await;
}

#[tokio::test]
async fn what_is_emitted_by_plain_sql_goes_only_where_it_passes() {
    let store = Private::open().await;
    let all = store.subscribe("all", Ordering::None).await;
    let filter: Filter =
        serde_json::from_value(json!([{"field": "payload.country", "equals": "AT"}])).unwrap();
    let policy = Policy { ordering: Ordering::Key, filter, ..Policy::default() };
    let some = store.subscribe_with("some", policy).await;
    let emit = |country: &str| {
        format!("SELECT $s.tramline_emit('t', '{{\"country\": \"{country}\"}}'::jsonb, key => 'k')")
    };
    let mut emitted = Vec::new();
    for country in ["AT", "DE", "AT"] {
        emitted.push(EventId(store.rows(&emit(country)).await[0].get(0)));
    }
    assert_eq!(ids(&store.claim(all.id, 9).await), emitted);
    assert_eq!(ids(&store.claim(some.id, 9).await), [emitted[0], emitted[2]]);
    store.close().await;
}
