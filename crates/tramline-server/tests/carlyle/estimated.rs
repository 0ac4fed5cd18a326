//! Estimated batches.

use crate::client::{Carlyle, ESTIMATED};
use crate::stores::{Place, on_every_store};
use serde_json::{Value, json};

on_every_store![
    estimated_batches_are_counted,
    several_estimated_batches_are_counted_at_once,
    closing_and_counting_an_estimated_batch_at_the_same_moment,
];

async fn estimated_batches_are_counted(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create_estimated(json!({"userKey": "k"})).await;
    assert_eq!(carlyle.incr(&batch, 5).await, 200);
    let told =
        |complete: bool| json!({"results": [{"batchId": batch, "userKey": "k", "isComplete": complete}]});
    assert_eq!(carlyle.decr(json!([{"batchId": batch, "by": 4}])).await, (200, told(false)));
    let path = format!("{ESTIMATED}/{batch}");
    let seen = json!({"isComplete": false, "isClosed": false, "userKey": "k"});
    assert_eq!(carlyle.send("GET", &path, Value::Null).await, (200, seen));
    let closed = json!({"batchId": batch, "userKey": "k", "isComplete": false});
    assert_eq!(carlyle.close_estimated(&batch).await, (200, closed));
    assert_eq!(carlyle.decr(json!([{"batchId": batch}])).await, (200, told(true)));
    let seen = json!({"isComplete": true, "isClosed": true, "userKey": "k"});
    assert_eq!(carlyle.send("GET", &path, Value::Null).await, (200, seen));
    assert_eq!(carlyle.send("DELETE", &path, Value::Null).await, (204, Value::Null));
    assert_eq!(carlyle.send("GET", &path, Value::Null).await.0, 404);
    let empty = carlyle.create_estimated(Value::Null).await;
    assert_eq!(carlyle.close_estimated(&empty).await.1, json!({"batchId": empty, "isComplete": true}));
    assert!(!carlyle.completions("estimated").await.is_empty());
}

async fn several_estimated_batches_are_counted_at_once(place: Place) {
    let carlyle = Carlyle(place.node());
    let (one, two) = (carlyle.create_estimated(json!({})).await, carlyle.create_estimated(json!({})).await);
    for batch in [&one, &two] {
        carlyle.incr(batch, 2).await;
        carlyle.close_estimated(batch).await;
    }
    let other = "123e4567-e89b-42d3-a456-426614174000";
    let (status, told) = carlyle
        .decr(json!([{"batchId": one, "by": 2}, {"batchId": other}, {"batchId": two}, {"batchId": two}]))
        .await;
    assert_eq!(status, 200);
    let complete: Vec<&Value> =
        told["results"].as_array().unwrap().iter().map(|one| &one["isComplete"]).collect();
    assert_eq!(complete, [true, false, false, true]);
    assert_eq!(told["results"][1]["status"], 404);
    for bad in [
        json!({"batchId": "x"}),
        json!({"batchId": 7}),
        json!({"batchId": two, "by": 0}),
        json!({"batchId": two, "by": -1}),
        json!({"batchId": two, "by": (1u64 << 40) + 1}),
        json!({"batchId": two, "by": u64::MAX}),
        json!({"batchId": two, "by": 1e30}),
        json!({"batchId": two, "by": 1.5}),
        json!({"batchId": two, "by": "1"}),
        json!({"batchId": two, "by": null}),
    ] {
        let (status, told) = carlyle.decr(json!([bad, {"batchId": one}])).await;
        assert_eq!((status, &told["results"][0]["status"]), (400, &json!(400)), "{bad}");
        assert_eq!(
            (&told["results"][0]["batchId"], told["results"][1].get("status")),
            (&bad["batchId"], None)
        );
        let detail = told["detail"].as_str().unwrap();
        assert_eq!(detail.contains("`by`"), bad.get("by").is_some(), "{detail}");
        assert!(detail.contains(&bad["batchId"].to_string()) && !detail.contains('\\'), "{detail}");
    }
    assert_eq!(
        carlyle.decr(json!(["x"])).await.1["detail"].as_str().unwrap().split(" at ").next().unwrap(),
        "the JSON does not fit: invalid type: string \"x\", expected an object"
    );
    assert_eq!(carlyle.decr(json!([{"batchId": other}])).await.0, 404);
}

async fn closing_and_counting_an_estimated_batch_at_the_same_moment(place: Place) {
    let carlyle = Carlyle(place.node());
    for round in 0..20 {
        let batch = carlyle.create_estimated(json!({})).await;
        carlyle.incr(&batch, 8).await;
        let decrs = (0..8).map(|_| carlyle.decr(json!([{"batchId": batch}])));
        let (counted, (_, closed)) =
            tokio::join!(futures_util::future::join_all(decrs), carlyle.close_estimated(&batch));
        let told = counted.iter().filter(|(_, told)| told["results"][0]["isComplete"] == true).count();
        assert_eq!(told + usize::from(closed["isComplete"] == true), 1, "round {round}");
    }
}
