//! Exact batches.

use crate::client::{Carlyle, ESTIMATED, EXACT, nothing};
use crate::stores::{Place, on_every_store};
use serde_json::{Value, json};

on_every_store![
    a_batch_is_created_filled_acked_and_closed,
    items_come_in_groups_of_64_and_one_remainder,
    user_keys_are_echoed,
    removing_idle_batches_leaves_active_ones_and_those_of_others,
    what_cannot_be_read_is_malformed,
];

async fn a_batch_is_created_filled_acked_and_closed(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({"userKey": "import"})).await;
    let items = carlyle.add(batch, 1_000).await;
    assert_eq!(items.len(), 1_000);
    let mut seen = json!({"batchId": batch, "isComplete": false, "isClosed": false, "userKey": "import"});
    assert_eq!(carlyle.get(batch).await, seen);
    assert_eq!(carlyle.close(batch).await, (200, json!({"isComplete": false})));
    let (last, first) = items.split_last().unwrap();
    for chunk in first.chunks(100) {
        assert_eq!(carlyle.ack(chunk).await, (200, nothing()));
    }
    let told = json!({"batchCompletions": [{"batchId": batch, "userKey": "import"}]});
    assert_eq!(carlyle.ack(std::slice::from_ref(last)).await, (200, told));
    (seen["isComplete"], seen["isClosed"]) = (json!(true), json!(true));
    assert_eq!(carlyle.get(batch).await, seen);
}

async fn items_come_in_groups_of_64_and_one_remainder(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    for (items, groups) in [(1, vec![1]), (64, vec![64]), (130, vec![64, 64, 2])] {
        let (_, added) =
            carlyle.post(&format!("{EXACT}/items"), json!({"batchId": batch, "items": items})).await;
        let upto: Vec<u64> = added["batchItemGroupIds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["upto"].as_u64().unwrap())
            .collect();
        assert_eq!(upto, groups);
    }
    assert_eq!(carlyle.add(batch, 10_000).await.len(), 10_000);
}

async fn user_keys_are_echoed(place: Place) {
    let carlyle = Carlyle(place.node());
    let key = "ü".repeat(255);
    let batch = carlyle.create(json!({"userKey": key})).await;
    assert_eq!(carlyle.get(batch).await["userKey"], json!(key));
    assert_eq!(carlyle.post(EXACT, json!({"userKey": "x".repeat(256)})).await.0, 400);
    let none = carlyle.create(json!({"userKey": null})).await;
    assert_eq!(carlyle.get(none).await.get("userKey"), None);
    let (status, created) = carlyle.post(&format!("{EXACT}/"), json!({"userKey": "", "unknown": 1})).await;
    assert_eq!(status, 200);
    let empty = created["batchId"].as_i64().unwrap();
    assert_eq!(carlyle.get(empty).await["userKey"], json!(""));
    carlyle.close(empty).await;
    assert_eq!(carlyle.completions("exact").await[0]["payload"], json!({"userKey": ""}));
}

async fn removing_idle_batches_leaves_active_ones_and_those_of_others(place: Place) {
    let carlyle = Carlyle(place.node());
    let own = carlyle.0.post("/v1/tallies", json!({})).await["tally"].as_str().unwrap().to_owned();
    let (open, closed) = (carlyle.create(json!({})).await, carlyle.create(json!({})).await);
    carlyle.add(open, 70).await;
    carlyle.add(closed, 3).await;
    carlyle.close(closed).await;
    let remove = async |which: &str, since: &str| {
        carlyle.send("DELETE", &format!("{EXACT}/{which}?since={since}"), Value::Null).await
    };
    let none = json!({"batchesRemoved": 0, "itemsRemoved": 0});
    for long_ago in
        ["2001-01-01T00:00:00Z", "978307200000", "2001-01-01T00:00:00.000%2B01:00", "2001-01-01T00:00:00"]
    {
        assert_eq!(remove("open", long_ago).await, (200, none.clone()), "{long_ago}");
        assert_eq!(remove("closed", long_ago).await, (200, none.clone()));
    }
    assert_eq!(
        remove("closed", "2999-01-01T00:00:00Z").await,
        (200, json!({"batchesRemoved": 1, "itemsRemoved": 3}))
    );
    assert_eq!(carlyle.send("GET", &format!("{EXACT}/{closed}"), Value::Null).await.0, 404);
    assert_eq!(carlyle.get(open).await["isClosed"], false);
    assert_eq!(
        remove("open", "2999-01-01T00:00:00Z").await,
        (200, json!({"batchesRemoved": 1, "itemsRemoved": 70}))
    );
    assert_eq!(carlyle.0.get(&format!("/v1/tallies/{own}")).await["state"], "open");
    for bad in ["", "yesterday"] {
        assert_eq!(remove("open", bad).await.0, 400);
    }
    assert_eq!(carlyle.send("DELETE", &format!("{EXACT}/open"), Value::Null).await.0, 400);
}

async fn what_cannot_be_read_is_malformed(place: Place) {
    let carlyle = Carlyle(place.node());
    let (status, problem) = carlyle.send("GET", &format!("{EXACT}/x"), Value::Null).await;
    assert_eq!((status, &problem["status"]), (400, &json!(400)));
    assert!(problem["remedy"].is_string(), "{problem}");
    for (path, body) in [
        (format!("{EXACT}/items"), json!({})),
        (format!("{EXACT}/items"), json!([])),
        (format!("{EXACT}/items/ack"), json!({"batchItemIds": "x"})),
        (format!("{EXACT}/close/x"), Value::Null),
        (format!("{ESTIMATED}/x/close"), Value::Null),
        (format!("{ESTIMATED}/x/incr"), Value::Null),
        (format!("{ESTIMATED}/decr"), json!({"acks": [1]})),
    ] {
        assert_eq!(carlyle.post(&path, body).await.0, 400, "{path}");
    }
    let batch = carlyle.create_estimated(json!({})).await;
    for by in ["0", "-1", "x", "9999999999999999"] {
        let path = format!("{ESTIMATED}/{batch}/incr?by={by}");
        assert_eq!(carlyle.post(&path, Value::Null).await.0, 400, "{by}");
    }
}
