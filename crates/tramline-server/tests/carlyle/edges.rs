//! Each row of the table of edges in the contract.

use crate::client::{Carlyle, ESTIMATED, EXACT, complete, nothing};
use crate::stores::{Place, on_every_store};
use serde_json::{Value, json};

on_every_store![
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
];

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

async fn close_an_empty_batch(place: Place) {
    let carlyle = Carlyle(place.node());
    let batch = carlyle.create(Value::Null).await;
    assert_eq!(carlyle.close(batch).await, (200, json!({"isComplete": true})));
}

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
    let foreign = [format!("{nobody}:3f2504e0-4f89-41d3-9a0c-0305e82c3301:0")];
    assert_eq!(carlyle.ack(&foreign).await.0, 404, "nobody knows which groups it would have");
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
