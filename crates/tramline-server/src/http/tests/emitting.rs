//! Emitting and reading.

use super::bed::Bed;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

async fn lines(bed: &Bed, text: String) -> super::bed::Reply {
    let request = Request::post("/v1/topics/t/events").header("content-type", "application/x-ndjson");
    bed.send(request.body(Body::from(text)).unwrap()).await
}

pub(super) fn ids(receipt: &Value) -> Vec<i64> {
    let events = receipt["events"].as_array().unwrap();
    events.iter().map(|event| event["id"].as_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn an_event_is_stored_and_read_as_it_was_given() {
    let bed = Bed::open().await;
    let event = json!({"payload": {"total": 12.5, "text": "ü"}, "type": "order.paid", "key": "order:42",
        "headers": {"trace": "1"}, "state": {"paid": true}});
    let reply = bed.post("/v1/topics/acme%2Forders/events", event.clone()).await;
    assert_eq!(reply.status, StatusCode::CREATED);
    let receipt = reply.json();
    assert_eq!(receipt["events"][0]["key"], "order:42");
    let id = receipt["events"][0]["id"].as_str().unwrap().to_owned();
    let second = bed.post("/v1/topics/acme%2Forders/events", event).await.good();
    assert_eq!(second["events"][0]["prev"], id);
    let read = bed.get(&format!("/v1/events/{id}")).await.good();
    assert_eq!(read["payload"], json!({"total": 12.5, "text": "ü"}));
    assert_eq!((&read["type"], &read["headers"]["trace"]), (&json!("order.paid"), &json!("1")));
    assert_eq!(read["topic"], "acme/orders");
    let head = bed.get("/v1/topics/acme%2Forders/head?key=order:42").await.good();
    assert_eq!((&head["last_id"], &head["state"]), (&second["events"][0]["id"], &json!({"paid": true})));
    bed.get("/v1/topics/acme%2Forders/head?key=other").await.problem(404);
}

#[tokio::test]
async fn an_array_is_stored_whole_or_not_at_all() {
    let bed = Bed::open().await;
    bed.post("/v1/topics/t/events", json!([{"payload": 1}, {"payload": 2, "priority": 77}]))
        .await
        .problem(422);
    bed.get("/v1/topics/t/events").await.problem(404);
    let receipt = bed
        .post("/v1/topics/t/events", json!([{"payload": 1, "key": "a"}, {"payload": 2, "key": "a"}]))
        .await;
    let receipt = receipt.good();
    assert_eq!(receipt["events"][1]["prev"], receipt["events"][0]["id"]);
}

#[tokio::test]
async fn sub_events_name_the_main_event_before_them() {
    let bed = Bed::open().await;
    let (main, sub) = (json!({"payload": "m", "key": "a"}), json!({"payload": "s", "key": "a", "sub": true}));
    let events = json!([main, sub, sub, main, sub]);
    let ids = ids(&bed.post("/v1/topics/t/events", events).await.good());
    let page = bed.get("/v1/topics/t/events").await.good();
    let mains: Vec<&Value> =
        page["items"].as_array().unwrap().iter().map(|event| &event["headers"]["tramline-main"]).collect();
    let of = |at: usize| json!(ids[at].to_string());
    assert_eq!(mains, [&Value::Null, &of(0), &of(0), &Value::Null, &of(3)]);
    for alone in [sub.clone(), json!([sub, main])] {
        bed.post("/v1/topics/t/events", alone).await.problem(422);
    }
    lines(&bed, format!("{main}\n{sub}")).await.problem(422);
}

#[tokio::test]
async fn an_idempotency_key_stores_once_and_refuses_another_body() {
    let bed = Bed::open().await;
    let emit = |body: &'static str| {
        let request = Request::post("/v1/topics/t/events").header("content-type", "application/json");
        bed.send(request.header("idempotency-key", "k1").body(Body::from(body)).unwrap())
    };
    let first = emit("{\"payload\":1}").await.good();
    assert_eq!(emit("{\"payload\":1}").await.good(), first);
    emit("{\"payload\":2}").await.problem(409);
}

#[tokio::test]
async fn other_content_types_are_one_event_of_raw_bytes() {
    let bed = Bed::open().await;
    let request = Request::post("/v1/topics/t/events")
        .header("content-type", "image/png")
        .header("tramline-key", "k")
        .header("tramline-type", "pic")
        .header("tramline-header-size", "3");
    let receipt = bed.send(request.body(Body::from(vec![0u8, 255, 7])).unwrap()).await.good();
    let id = receipt["events"][0]["id"].as_str().unwrap();
    let read = bed.get(&format!("/v1/events/{id}")).await.good();
    assert_eq!((&read["payload_base64"], &read["content_type"]), (&json!("AP8H"), &json!("image/png")));
    assert_eq!(
        (&read["key"], &read["type"], &read["headers"]["size"]),
        (&json!("k"), &json!("pic"), &json!("3"))
    );
    assert!(read.get("payload").is_none());
}

/// As `curl -d` sends it.
#[tokio::test]
async fn json_that_comes_as_a_form_is_refused_and_other_bytes_are_not() {
    let bed = Bed::open().await;
    let send = async |body: &'static str| {
        let request = Request::post("/v1/topics/t/events");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        bed.send(request.body(Body::from(body)).unwrap()).await
    };
    let problem = send(r#"{"payload": 1}"#).await.problem(415);
    assert!(problem["remedy"].as_str().unwrap().contains("content-type: application/json"), "{problem}");
    send("a=1&b=2").await.good();
}

#[tokio::test]
async fn lines_are_stored_in_groups_and_the_bad_one_is_named() {
    let bed = Bed::open().await;
    let good = "{\"payload\": 1}\n".repeat(2_500);
    assert_eq!(ids(&lines(&bed, good.clone()).await.good()).len(), 2_500);
    let problem = lines(&bed, format!("{good}{{\"payload\": nonsense}}\n{good}")).await.problem(400);
    assert_eq!((&problem["line"], &problem["stored"]), (&json!(2_501), &json!(2_048)));
    let problem =
        lines(&bed, "{\"payload\": 1}\n\n{\"payload\": 1, \"delay_ms\": -1}".into()).await.problem(422);
    assert_eq!((&problem["line"], &problem["stored"]), (&json!(3), &json!(0)));
    lines(&bed, "x".repeat(2 << 20)).await.problem(413);
}

#[tokio::test]
async fn a_topic_is_read_page_by_page_and_by_key() {
    let bed = Bed::open().await;
    let mut emitted = Vec::new();
    for number in 0..25 {
        let event = json!({"payload": number, "key": format!("k{}", number % 3)});
        emitted.extend(ids(&bed.post("/v1/topics/t/events", event).await.good()));
    }
    let (mut read, mut after) = (Vec::new(), String::from("0"));
    loop {
        let page = bed.get(&format!("/v1/topics/t/events?limit=10&after={after}")).await.good();
        read.extend(page["items"].as_array().unwrap().iter().map(|event| event["payload"].as_i64().unwrap()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(read, (0..25).collect::<Vec<_>>());
    let one = bed.get("/v1/topics/t/events?key=k1&limit=3").await.good();
    let keys: Vec<&Value> = one["items"].as_array().unwrap().iter().map(|event| &event["payload"]).collect();
    assert_eq!(keys, [&json!(1), &json!(4), &json!(7)]);
}

#[tokio::test]
async fn topics_are_created_listed_and_deleted() {
    let bed = Bed::open().await;
    let topic = bed.put("/v1/topics/a", json!({"lanes": 4, "retention_ms": 5_000})).await.good();
    assert_eq!((&topic["lanes"], &topic["retention_ms"]), (&json!(4), &json!(5_000)));
    assert_eq!(topic["owner"], Value::Null);
    bed.put("/v1/topics/b", json!({})).await.good();
    let page = bed.get("/v1/topics?limit=1").await.good();
    assert_eq!((&page["items"][0]["name"], &page["next"]), (&json!("a"), &json!("a")));
    bed.delete("/v1/topics/a").await.good();
    let page = bed.get("/v1/topics").await.good();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next"]), (1, &Value::Null));
}

#[tokio::test]
async fn the_owner_of_a_topic_is_kept_until_somebody_else_or_nobody_is() {
    let bed = Bed::open().await;
    let put = async |body| bed.put("/v1/topics/a", body).await.good()["owner"].clone();
    assert_eq!(put(json!({"owner": "team shop"})).await, "team shop");
    assert_eq!(put(json!({"retention_ms": 5_000})).await, "team shop");
    assert_eq!(bed.get("/v1/topics/a").await.good()["owner"], "team shop");
    assert_eq!(put(json!({"owner": null})).await, Value::Null);
    bed.put("/v1/topics/a", json!({"owner": ""})).await.problem(422);
}

#[tokio::test]
async fn an_empty_idempotency_key_is_refused() {
    let bed = Bed::open().await;
    let request = Request::post("/v1/topics/t/events").header("content-type", "application/json");
    let request = request.header("idempotency-key", "").body(Body::from(r#"{"payload":1}"#)).unwrap();
    bed.send(request).await.problem(422);
}

#[tokio::test]
async fn a_new_subscription_has_what_was_emitted_before_it_at_once() {
    let bed = Bed::open().await;
    let emitted = bed.post("/v1/topics/t/events", json!({"payload": 1})).await.good();
    let path = format!("/v1/events/{}", emitted["events"][0]["id"].as_str().unwrap());
    let made = bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    assert_eq!(made["counts"]["ready"], 1);
    assert_eq!(bed.get(&path).await.good()["deliveries"][0]["status"], "ready");
    assert_eq!(bed.post(&format!("{path}/cancel"), json!({})).await.good()["cancelled"], json!(["s"]));
}
