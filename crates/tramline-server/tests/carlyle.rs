//! Carlyle's API through the real binary, on every store: each call, and each row of the table of edges.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod stores;

use node::Node;
use serde_json::{Value, json};
use stores::{Place, on_every_store};

const EXACT: &str = "/api/v1/batch/exact";
const ESTIMATED: &str = "/api/v1/batch/estimated";

/// Calls of Carlyle's, as its clients make them.
struct Carlyle(Node);

impl Carlyle {
    async fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let request = self.0.http.request(method.parse().unwrap(), self.0.url(path));
        let request = request.header("content-type", "application/json");
        let request = if body.is_null() { request } else { request.body(body.to_string()) };
        let reply = request.send().await.unwrap();
        let (status, text) = (reply.status().as_u16(), reply.text().await.unwrap());
        (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() })
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, body).await
    }

    async fn create(&self, body: Value) -> i64 {
        let (status, created) = self.post(EXACT, body).await;
        assert_eq!((status, created.as_object().unwrap().len()), (200, 1), "{created}");
        created["batchId"].as_i64().unwrap()
    }

    /// Adds items, and gives their names as a client makes them.
    async fn add(&self, batch: i64, items: i64) -> Vec<String> {
        let (status, added) =
            self.post(&format!("{EXACT}/items"), json!({"batchId": batch, "items": items})).await;
        assert_eq!(status, 200, "{added}");
        let groups = added["batchItemGroupIds"].as_array().unwrap();
        let names = |group: &Value| {
            let id = group["id"].as_str().unwrap().to_owned();
            (0..group["upto"].as_u64().unwrap()).map(move |index| format!("{batch}:{id}:{index}"))
        };
        groups.iter().flat_map(names).collect()
    }

    async fn ack(&self, items: &[String]) -> (u16, Value) {
        self.post(&format!("{EXACT}/items/ack"), json!({"batchItemIds": items})).await
    }

    async fn close(&self, batch: i64) -> (u16, Value) {
        self.post(&format!("{EXACT}/close/{batch}"), Value::Null).await
    }

    async fn get(&self, batch: i64) -> Value {
        let (status, seen) = self.send("GET", &format!("{EXACT}/{batch}"), Value::Null).await;
        assert_eq!(status, 200, "{seen}");
        seen
    }

    async fn create_estimated(&self, body: Value) -> String {
        let (status, created) = self.post(ESTIMATED, body).await;
        assert_eq!(status, 200, "{created}");
        created["batchId"].as_str().unwrap().to_owned()
    }

    async fn incr(&self, batch: &str, by: i64) -> u16 {
        self.post(&format!("{ESTIMATED}/{batch}/incr?by={by}"), Value::Null).await.0
    }

    async fn decr(&self, acks: Value) -> (u16, Value) {
        self.post(&format!("{ESTIMATED}/decr"), json!({"acks": acks})).await
    }

    async fn close_estimated(&self, batch: &str) -> (u16, Value) {
        self.post(&format!("{ESTIMATED}/{batch}/close"), Value::Null).await
    }

    /// The events that complete batches emitted, as soon as there are any.
    async fn completions(&self, kind: &str) -> Vec<Value> {
        let path = format!("/v1/topics/carlyle%2F{kind}/events?limit=1000");
        stores::until(async || {
            let (status, seen) = self.send("GET", &path, Value::Null).await;
            (status == 200)
                .then(|| seen["items"].as_array().unwrap().clone())
                .filter(|items| !items.is_empty())
        })
        .await
    }
}

fn complete(batch: i64) -> Value {
    json!({"batchCompletions": [{"batchId": batch}]})
}

fn nothing() -> Value {
    json!({"batchCompletions": []})
}

on_every_store![
    a_batch_is_created_filled_acked_and_closed,
    items_come_in_groups_of_64_and_one_remainder,
    ack_twice,
    all_acked_then_close,
    close_an_empty_batch,
    close_twice,
    add_after_close,
    unknown_batch,
    bad_item_names,
    no_items_or_fewer,
    last_acks_and_close_at_the_same_moment,
    crash_after_winning,
    removing_idle_batches_leaves_active_ones_and_those_of_others,
    user_keys_are_echoed,
    estimated_batches_are_counted,
    several_estimated_batches_are_counted_at_once,
    closing_and_counting_an_estimated_batch_at_the_same_moment,
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

/// Fine, `already`; complete stays readable, the completion edge is granted once.
async fn ack_twice(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    let items = carlyle.add(batch, 2).await;
    carlyle.close(batch).await;
    assert_eq!(carlyle.ack(&items[..1]).await, (200, nothing()));
    let (status, again) = carlyle.ack(&items[..1]).await;
    assert_eq!(status, 200);
    assert_eq!(again["results"], json!([{"id": items[0], "status": 200, "result": "already"}]));
    let (_, last) = carlyle.ack(&items).await;
    assert_eq!(last["batchCompletions"], complete(batch)["batchCompletions"]);
    let (status, late) = carlyle.ack(&items).await;
    assert_eq!((status, &late["batchCompletions"]), (200, &json!([])));
    assert_eq!(carlyle.get(batch).await["isComplete"], true);
    assert_eq!(carlyle.completions("exact").await.len(), 1);
}

async fn all_acked_then_close(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    let items = carlyle.add(batch, 100).await;
    assert_eq!(carlyle.ack(&items).await, (200, nothing()));
    assert_eq!(carlyle.get(batch).await["isComplete"], false);
    assert_eq!(carlyle.close(batch).await, (200, json!({"isComplete": true})));
}

/// Complete at once.
async fn close_an_empty_batch(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(Value::Null).await;
    assert_eq!(carlyle.close(batch).await, (200, json!({"isComplete": true})));
}

/// Idempotent, one edge.
async fn close_twice(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    let items = carlyle.add(batch, 1).await;
    for _ in 0..2 {
        assert_eq!(carlyle.close(batch).await, (200, json!({"isComplete": false})));
    }
    assert_eq!(carlyle.ack(&items).await, (200, complete(batch)));
    let empty = carlyle.create(json!({})).await;
    for _ in 0..2 {
        assert_eq!(carlyle.close(empty).await, (200, json!({"isComplete": true})));
    }
    let told = carlyle.completions("exact").await;
    let of = |batch: i64| {
        told.iter().filter(|one| one["headers"]["tramline-tally"] == json!(batch.to_string())).count()
    };
    assert!(of(batch) <= 1 && of(empty) <= 1, "{told:?}");
}

async fn add_after_close(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    carlyle.add(batch, 1).await;
    carlyle.close(batch).await;
    let (status, _) = carlyle.post(&format!("{EXACT}/items"), json!({"batchId": batch, "items": 1})).await;
    assert_eq!(status, 409);
    let estimated = carlyle.create_estimated(json!({})).await;
    carlyle.close_estimated(&estimated).await;
    assert_eq!(carlyle.incr(&estimated, 1).await, 409);
}

/// 404 (add, close, get); per item 404 in a mixed ack, the others still count.
async fn unknown_batch(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    let items = carlyle.add(batch, 1).await;
    carlyle.close(batch).await;
    let nobody = batch + 1_000;
    assert_eq!(carlyle.send("GET", &format!("{EXACT}/{nobody}"), Value::Null).await.0, 404);
    assert_eq!(carlyle.close(nobody).await.0, 404);
    let add = json!({"batchId": nobody, "items": 1});
    assert_eq!(carlyle.post(&format!("{EXACT}/items"), add).await.0, 404);
    let gone = carlyle.create(json!({})).await;
    let lost = carlyle.add(gone, 1).await;
    let deleted = carlyle.0.http.delete(carlyle.0.url(&format!("/v1/tallies/{gone}"))).send().await.unwrap();
    assert_eq!(deleted.status(), 204);
    assert_eq!(carlyle.ack(&lost).await.0, 404);
    let (status, mixed) = carlyle.ack(&[lost[0].clone(), items[0].clone()]).await;
    assert_eq!((status, &mixed["batchCompletions"]), (200, &complete(batch)["batchCompletions"]));
    assert_eq!((&mixed["results"][0]["id"], &mixed["results"][0]["status"]), (&json!(lost[0]), &json!(404)));
    let other = "123e4567-e89b-42d3-a456-426614174000";
    for path in [format!("{ESTIMATED}/{other}/incr?by=1"), format!("{ESTIMATED}/{other}/close")] {
        assert_eq!(carlyle.post(&path, Value::Null).await.0, 404);
    }
    assert_eq!(carlyle.send("GET", &format!("{ESTIMATED}/{other}"), Value::Null).await.0, 404);
    assert_eq!(carlyle.send("DELETE", &format!("{ESTIMATED}/{other}"), Value::Null).await.0, 404);
}

/// Index at or past `upto`, malformed id, wrong batch for the group: 400, named item; nothing else lost.
async fn bad_item_names(place: Place) {
    let carlyle = Carlyle(place.node());
    let other = carlyle.create(json!({})).await;
    for bad in [
        "BATCH:GROUP:5",
        "BATCH:GROUP:64",
        "BATCH:GROUP:-1",
        "BATCH:GROUP:",
        "BATCH:GROUP",
        "BATCH:GROUP:0:0",
        "BATCH:not-a-uuid:0",
        "BATCH:123e4567-e89b-42d3-a456-426614174000:0",
        "OTHER:GROUP:0",
        "nonsense",
        "",
    ] {
        let batch = carlyle.create(json!({})).await;
        let mut items = carlyle.add(batch, 5).await;
        carlyle.close(batch).await;
        let group = items[0].split(':').nth(1).unwrap();
        let bad = bad.replace("BATCH", &batch.to_string()).replace("GROUP", group);
        let bad = bad.replace("OTHER", &other.to_string());
        items.insert(2, bad.clone());
        let (status, told) = carlyle.ack(&items).await;
        assert_eq!(
            (status, &told["batchCompletions"]),
            (400, &complete(batch)["batchCompletions"]),
            "{bad}: {told}"
        );
        let results = told["results"].as_array().unwrap();
        assert_eq!((results.len(), &results[0]["id"], &results[0]["status"]), (1, &json!(bad), &json!(400)));
        assert!(told["detail"].as_str().unwrap().contains(&bad), "{told}");
    }
    let (status, told) = carlyle.post(&format!("{EXACT}/items/ack"), json!({"batchItemIds": [7]})).await;
    assert_eq!((status, &told["results"][0]["id"]), (400, &json!(7)));
}

async fn no_items_or_fewer(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({})).await;
    for items in [json!(0), json!(-1), json!(1.5), json!("3"), Value::Null, json!(i64::MAX)] {
        let (status, _) =
            carlyle.post(&format!("{EXACT}/items"), json!({"batchId": batch, "items": items})).await;
        assert_eq!(status, 400, "{items}");
    }
    assert_eq!(carlyle.close(batch).await.1["isComplete"], true);
}

/// Exactly one is told; never none, never two.
async fn last_acks_and_close_at_the_same_moment(place: Place) {
    let carlyle = Carlyle(place.node());
    for round in 0..30 {
        let batch = carlyle.create(json!({})).await;
        let items = carlyle.add(batch, 70).await;
        let acks = items.chunks(7).map(|chunk| carlyle.ack(chunk));
        let (acked, (_, closed)) = tokio::join!(futures_util::future::join_all(acks), carlyle.close(batch));
        let by_acks: usize =
            acked.iter().map(|(_, told)| told["batchCompletions"].as_array().unwrap().len()).sum();
        let by_close = usize::from(closed["isComplete"] == true);
        assert_eq!(by_acks + by_close, 1, "round {round}: {by_acks} by acks, {by_close} by close");
        assert_eq!(carlyle.get(batch).await["isComplete"], true);
    }
}

/// The durable completion event still comes, under the same id.
async fn crash_after_winning(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(json!({"userKey": "k"})).await;
    let items = carlyle.add(batch, 3).await;
    carlyle.close(batch).await;
    carlyle.ack(&items).await;
    carlyle.0.signal("-KILL");
    carlyle.0.ended();
    let carlyle = Carlyle(place.node());
    let told = carlyle.completions("exact").await;
    assert_eq!((told.len(), &told[0]["headers"]["tramline-tally"]), (1, &json!(batch.to_string())));
    assert_eq!((&told[0]["type"], &told[0]["payload"]), (&json!("batch.complete"), &json!({"userKey": "k"})));
    assert_eq!(carlyle.get(batch).await["isComplete"], true);
}

/// Activity postpones reaping; open and closed batches are removed apart.
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
    assert_eq!(carlyle.get(created["batchId"].as_i64().unwrap()).await.get("userKey"), None);
}

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
    ] {
        let (status, told) = carlyle.decr(json!([bad, {"batchId": one}])).await;
        assert_eq!((status, &told["results"][0]["status"]), (400, &json!(400)), "{bad}");
        assert_eq!(
            (&told["results"][0]["batchId"], told["results"][1].get("status")),
            (&bad["batchId"], None)
        );
    }
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
