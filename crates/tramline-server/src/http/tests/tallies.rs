//! Tallies: every call, and every way in which it can be refused.

use super::bed::Bed;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

async fn open(bed: &Bed, tally: Value) -> String {
    let opened = bed.post("/v1/tallies", tally).await;
    assert_eq!(opened.status, 201);
    opened.good()["tally"].as_str().unwrap().to_owned()
}

async fn post(bed: &Bed, tally: &str, verb: &str, body: Value) -> Value {
    bed.post(&format!("/v1/tallies/{tally}/{verb}"), body).await.good()
}

async fn refused(bed: &Bed, tally: &str, verb: &str, body: Value, status: u16) {
    bed.post(&format!("/v1/tallies/{tally}/{verb}"), body).await.problem(status);
}

/// A tally that has items and is sealed.
async fn sealed(bed: &Bed, items: u64) -> String {
    let tally = open(bed, json!({})).await;
    post(bed, &tally, "add", json!({"count": items})).await;
    post(bed, &tally, "seal", json!({})).await;
    tally
}

#[tokio::test]
async fn the_ack_that_ends_the_last_item_is_told() {
    let bed = Bed::open().await;
    let tally = open(&bed, json!({"user_key": "import-7", "metadata": {"rows": [1]}})).await;
    let added = post(&bed, &tally, "add", json!({"count": 100})).await;
    assert_eq!((&added["first"], &added["count"], &added["total"]), (&json!(0), &json!(100), &json!(100)));
    let standing = post(&bed, &tally, "seal", json!({"expected": 100})).await;
    let expected = json!({"tally": tally, "state": "sealed", "sealed": true, "complete": false, "completed_now": false,
        "total": 100, "done": 0, "failed": 0, "pending": 100});
    assert_eq!(standing, expected);
    let acked = post(&bed, &tally, "ack", json!({"items": [3, [10, 19]]})).await;
    assert_eq!(
        (&acked["done"], &acked["pending"], &acked["completed_now"]),
        (&json!(11), &json!(89), &json!(false))
    );
    let failed = post(&bed, &tally, "fail", json!({"items": [[90, 98], 3]})).await;
    assert_eq!(failed["results"][1], json!({"acked": 0, "already": 1, "unknown": 0, "closed": 0}));
    let last = post(&bed, &tally, "ack", json!({"items": [[0, 99]]})).await;
    let expected = json!({"tally": tally, "state": "complete", "sealed": true, "complete": true, "completed_now": true,
        "total": 100, "done": 91, "failed": 9, "pending": 0,
        "results": [{"acked": 80, "already": 20, "unknown": 0, "closed": 0}]});
    assert_eq!(last, expected);
    let again = post(&bed, &tally, "ack", json!({"items": [[0, 99]]})).await;
    assert_eq!((&again["complete"], &again["completed_now"]), (&json!(true), &json!(false)));
    let seen = bed.get(&format!("/v1/tallies/{tally}")).await.good();
    assert_eq!((&seen["user_key"], &seen["metadata"]), (&json!("import-7"), &json!({"rows": [1]})));
    assert_eq!((&seen["progress"], &seen["completed_now"]), (&json!(1.0), &json!(false)));
    assert!(seen["ended_at"].is_string(), "{seen}");
}

#[tokio::test]
async fn sealing_is_told_when_nothing_is_left_and_changes_nothing_the_second_time() {
    let bed = Bed::open().await;
    let empty = open(&bed, json!({})).await;
    assert_eq!(post(&bed, &empty, "seal", json!({})).await["completed_now"], true);
    let again = post(&bed, &empty, "seal", json!({})).await;
    assert_eq!((&again["complete"], &again["completed_now"]), (&json!(true), &json!(false)));
    let acked = open(&bed, json!({})).await;
    post(&bed, &acked, "add", json!({"count": 3})).await;
    assert_eq!(post(&bed, &acked, "ack", json!({"items": [[0, 2]]})).await["complete"], false);
    assert_eq!(post(&bed, &acked, "seal", json!({"expected": 3})).await["completed_now"], true);
}

#[tokio::test]
async fn a_tally_with_another_number_of_items_stays_open() {
    let bed = Bed::open().await;
    let tally = open(&bed, json!({})).await;
    post(&bed, &tally, "add", json!({"count": 3})).await;
    refused(&bed, &tally, "seal", json!({"expected": 4}), 409).await;
    let added = post(&bed, &tally, "add", json!({"count": 1})).await;
    assert_eq!(added["sealed"], false);
    post(&bed, &tally, "seal", json!({"expected": 4})).await;
    refused(&bed, &tally, "add", json!({"count": 1}), 409).await;
}

#[tokio::test]
async fn items_that_do_not_exist_are_told_and_do_not_harm_the_others() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 10).await;
    let acked = post(&bed, &tally, "ack", json!({"items": [5_000, [8, 11], 0]})).await;
    let unknown: Vec<&Value> =
        acked["results"].as_array().unwrap().iter().map(|one| &one["unknown"]).collect();
    assert_eq!((unknown, &acked["done"]), (vec![&json!(1), &json!(2), &json!(0)], &json!(3)));
}

#[tokio::test]
async fn one_call_ends_items_of_several_tallies() {
    let bed = Bed::open().await;
    let (one, two) = (sealed(&bed, 2).await, sealed(&bed, 3).await);
    let acks = json!({"acks": [
        {"tally": one, "items": [[0, 1]]},
        {"tally": "999999", "items": [0]},
        {"tally": two, "items": [0]},
        {"tally": two, "items": [1, 0], "outcome": "failed"},
    ]});
    let results = bed.post("/v1/tallies/ack", acks).await.good()["results"].clone();
    let of = |at: usize, field: &str| results[at][field].clone();
    assert_eq!(
        (of(0, "status"), of(0, "completed_now"), of(0, "done")),
        (json!("acked"), json!(true), json!(2))
    );
    assert_eq!((of(1, "status"), of(1, "total")), (json!("not_found"), Value::Null));
    assert_eq!(of(1, "results")[0]["unknown"], 1);
    assert_eq!((of(2, "done"), of(3, "failed"), of(3, "pending")), (json!(1), json!(1), json!(1)));
    assert_eq!(of(3, "results")[1]["already"], 1);
}

#[tokio::test]
async fn a_cancelled_tally_is_never_complete() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 2).await;
    post(&bed, &tally, "ack", json!({"items": [0]})).await;
    for _ in 0..2 {
        assert_eq!(post(&bed, &tally, "cancel", json!({})).await["state"], "cancelled");
    }
    let late = post(&bed, &tally, "ack", json!({"items": [1]})).await;
    assert_eq!((&late["results"][0]["closed"], &late["complete"]), (&json!(1), &json!(false)));
    refused(&bed, &tally, "add", json!({"count": 1}), 409).await;
    refused(&bed, &tally, "seal", json!({}), 409).await;
    let complete = open(&bed, json!({})).await;
    post(&bed, &complete, "seal", json!({})).await;
    refused(&bed, &complete, "cancel", json!({}), 409).await;
}

#[tokio::test]
async fn a_deleted_tally_is_gone() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 2).await;
    assert_eq!(bed.delete(&format!("/v1/tallies/{tally}")).await.status, 204);
    bed.delete(&format!("/v1/tallies/{tally}")).await.problem(404);
    for (verb, body) in [
        ("add", json!({"count": 1})),
        ("seal", json!({})),
        ("ack", json!({"items": [0]})),
        ("fail", json!({"items": []})),
        ("count", json!({"by": 1})),
        ("cancel", json!({})),
    ] {
        refused(&bed, &tally, verb, body, 404).await;
    }
}

#[tokio::test]
async fn estimated_tallies_are_counted() {
    let bed = Bed::open().await;
    let tally = open(&bed, json!({"estimated": true})).await;
    assert_eq!(post(&bed, &tally, "count", json!({"by": 3})).await["total"], 3);
    assert_eq!(post(&bed, &tally, "count", json!({"by": -2})).await["pending"], 1);
    assert_eq!(post(&bed, &tally, "seal", json!({})).await["complete"], false);
    refused(&bed, &tally, "count", json!({"by": 1}), 409).await;
    assert_eq!(post(&bed, &tally, "count", json!({"by": -1})).await["completed_now"], true);
    assert_eq!(post(&bed, &tally, "count", json!({"by": -1})).await["completed_now"], false);
    assert_eq!(bed.get(&format!("/v1/tallies/{tally}")).await.good()["estimated"], true);
    refused(&bed, &tally, "add", json!({"count": 1}), 422).await;
    refused(&bed, &tally, "ack", json!({"items": [0]}), 422).await;
    let exact = open(&bed, json!({})).await;
    refused(&bed, &exact, "count", json!({"by": 1}), 422).await;
}

#[tokio::test]
async fn the_same_key_opens_one_tally_and_adds_once() {
    let bed = Bed::open().await;
    let send = async |path: &str, key: &str, body: Value| {
        let request = Request::post(path).header("idempotency-key", key);
        bed.send(request.body(Body::from(body.to_string())).unwrap()).await
    };
    let first = send("/v1/tallies", "k", json!({"user_key": "a"})).await.good();
    let again = send("/v1/tallies", "k", json!({"user_key": "a"})).await.good();
    assert_eq!((&first["tally"], &first["repeated"]), (&again["tally"], &json!(false)));
    assert_eq!(again["repeated"], true);
    send("/v1/tallies", "k", json!({"user_key": "b"})).await.problem(409);
    send("/v1/tallies", "", json!({})).await.problem(422);
    let other = send("/v1/tallies", "k", json!({"topic": "t", "user_key": "a"})).await.good();
    assert_ne!(other["tally"], first["tally"], "the keys of a topic are its own");
    let add = format!("/v1/tallies/{}/add", first["tally"].as_str().unwrap());
    let items = send(&add, "rows", json!({"count": 5})).await.good();
    let again = send(&add, "rows", json!({"count": 5})).await.good();
    assert_eq!((&items["first"], &again["total"]), (&again["first"], &json!(5)));
    send(&add, "rows", json!({"count": 6})).await.problem(409);
}

#[tokio::test]
async fn lists_are_filtered_and_come_in_pages() {
    let bed = Bed::open().await;
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(open(&bed, json!({"user_key": if n == 3 { "odd one" } else { "usual" }})).await);
    }
    post(&bed, &all[1], "seal", json!({})).await;
    post(&bed, &all[2], "cancel", json!({})).await;
    let list = async |query: &str| -> (Vec<String>, Value) {
        let page = bed.get(&format!("/v1/tallies?{query}")).await.good();
        let items = page["items"].as_array().unwrap().iter();
        (items.map(|one| one["tally"].as_str().unwrap().to_owned()).collect(), page["next"].clone())
    };
    assert_eq!(list("").await, (all.clone(), Value::Null));
    assert_eq!(list("user_key=odd%20one").await.0, [all[3].clone()]);
    assert_eq!(list("state=complete,cancelled").await.0, [all[1].clone(), all[2].clone()]);
    assert_eq!(list("state=open&user_key=usual").await.0, [all[0].clone(), all[4].clone()]);
    assert_eq!(list("limit=0").await, list("limit=1").await, "as in every list");
    assert_eq!(list("limit=2").await, (all[..2].to_vec(), json!(all[1])));
    assert_eq!(list(&format!("limit=3&after={}", all[1])).await, (all[2..].to_vec(), Value::Null));
}

#[tokio::test]
async fn a_look_waits_for_the_end() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 1).await;
    let path = format!("/v1/tallies/{tally}?wait_ms=60000");
    let (seen, ()) = tokio::join!(bed.get(&path), async {
        while bed.app.waiting.available_permits() == bed.app.config.max_waiting {
            tokio::task::yield_now().await;
        }
        // Who waits takes no room from those who work.
        assert_eq!(bed.app.requests.available_permits(), bed.app.config.max_requests);
        post(&bed, &tally, "ack", json!({"items": [0]})).await;
    });
    assert_eq!(seen.good()["complete"], true);
}

#[tokio::test]
async fn a_look_answers_after_its_time_and_when_the_server_drains() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 1).await;
    assert_eq!(bed.get(&format!("/v1/tallies/{tally}?wait_ms=1")).await.good()["complete"], false);
    let path = format!("/v1/tallies/{tally}?wait_ms=86400000");
    let (seen, ()) = tokio::join!(bed.get(&path), async {
        while bed.app.waiting.available_permits() == bed.app.config.max_waiting {
            tokio::task::yield_now().await;
        }
        bed.app.draining.cancel();
    });
    assert_eq!(seen.good()["state"], "sealed");
}

#[tokio::test]
async fn a_tally_whose_time_is_over_has_expired() {
    let bed = Bed::open().await;
    let tally =
        open(&bed, json!({"expires_ms": 1, "on_expiry": {"topic": "late", "payload": {"import": 7}}})).await;
    let path = format!("/v1/tallies/{tally}");
    while bed.get(&path).await.good()["state"] != "expired" {}
    bed.app.tram.sweep().await.unwrap();
    let events = bed.get("/v1/topics/late/events").await.good();
    assert_eq!(events["items"][0]["payload"], json!({"import": 7}));
    refused(&bed, &tally, "seal", json!({}), 409).await;
}

#[tokio::test]
async fn impossible_tallies_are_refused() {
    let bed = Bed::open().await;
    for bad in [
        json!({"user_key": ""}),
        json!({"user_key": "x".repeat(256)}),
        json!({"user_key": 5}),
        json!({"topic": "not a topic"}),
        json!({"expires_ms": 0}),
        json!({"expires_ms": u64::MAX}),
        json!({"estimated": true, "growing": true}),
        json!({"on_complete": {"payload": 1}}),
        json!({"on_complete": {"topic": "not a topic"}}),
        json!({"on_complete": {"topic": "t", "priority": 10}}),
        json!({"on_complete": {"topic": "t", "tally": {"id": "1"}}}),
        json!({"parent": {"id": 5}}),
        json!({"nobody_knows_it": 1}),
    ] {
        bed.post("/v1/tallies", bad).await.problem(422);
    }
    bed.post("/v1/tallies", json!({"metadata": "x".repeat(20_000)})).await.problem(413);
    bed.post("/v1/tallies", json!({"on_complete": {"topic": "t", "payload": "x".repeat(70_000)}}))
        .await
        .problem(413);
    bed.post("/v1/tallies", json!({"parent": {"id": "999999"}})).await.problem(404);
}

/// The names of types in the server mean nothing to a caller.
#[tokio::test]
async fn what_is_no_object_is_refused_in_the_words_of_the_api() {
    let bed = Bed::open().await;
    let ack = |ack: Value| ("/v1/tallies/ack", json!({"acks": [ack]}));
    let open = |field: &str, value: Value| ("/v1/tallies", json!({field: value}));
    let emit = |tally: Value| ("/v1/topics/t/events", json!({"payload": 1, "tally": tally}));
    for bad in [json!("x"), json!(7), json!(["7", [0]]), json!([{}])] {
        for (path, body) in [
            ack(bad.clone()),
            open("on_complete", bad.clone()),
            open("on_failure", bad.clone()),
            open("on_expiry", bad.clone()),
            open("parent", bad.clone()),
            emit(bad.clone()),
        ] {
            let told = bed.post(path, body.clone()).await.problem(422);
            let detail = told["detail"].as_str().unwrap();
            assert!(detail.contains("an object") && !detail.contains("struct"), "{body}: {detail}");
        }
    }
}

#[tokio::test]
async fn an_item_has_one_tally_that_stands_for_it() {
    let bed = Bed::open().await;
    let parent = open(&bed, json!({})).await;
    post(&bed, &parent, "add", json!({"count": 1})).await;
    let child = json!({"parent": {"id": parent, "item": 0}});
    open(&bed, child.clone()).await;
    let told = bed.post("/v1/tallies", child).await.problem(409);
    assert!(told["detail"].as_str().unwrap().contains("another tally"), "{told}");
    refused(&bed, &parent, "add", json!({"count": 1, "within": 9}), 409).await;
}

#[tokio::test]
async fn absurd_items_and_numbers_are_refused() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 10).await;
    for bad in [
        json!({}),
        json!({"items": 3}),
        json!({"items": [-1]}),
        json!({"items": ["3"]}),
        json!({"items": [[5, 3]]}),
        json!({"items": [[1, 2, 3]]}),
        json!({"items": [[0, u64::MAX]]}),
        json!({"items": vec![0; 10_001]}),
    ] {
        refused(&bed, &tally, "ack", bad.clone(), 422).await;
        refused(&bed, &tally, "fail", bad, 422).await;
    }
    let open = open(&bed, json!({})).await;
    for bad in [json!({}), json!({"count": 0}), json!({"count": -1}), json!({"count": u64::MAX})] {
        refused(&bed, &open, "add", bad, 422).await;
    }
    let told = bed.post(&format!("/v1/tallies/{open}/add"), json!({"count": "3"})).await.problem(422);
    let expected =
        "the JSON does not fit: invalid type: string \"3\", expected a whole number within its limits";
    assert!(told["detail"].as_str().unwrap().starts_with(expected), "{told}");
    let many = json!({"acks": vec![json!({"tally": tally, "items": []}); 1_001]});
    bed.post("/v1/tallies/ack", many).await.problem(422);
    bed.post("/v1/tallies/ack", json!({"acks": [{"tally": 5, "items": []}]})).await.problem(422);
    for path in ["/v1/tallies/x", "/v1/tallies/-1", "/v1/tallies/99999999999999999999"] {
        bed.get(path).await.problem(400);
    }
    bed.get(&format!("/v1/tallies/{tally}?wait_ms=86400001")).await.problem(422);
    for query in ["state=finished", "state=", "after=x", "limit=-1"] {
        bed.get(&format!("/v1/tallies?{query}")).await.problem(422);
    }
}

#[tokio::test]
async fn of_many_acks_and_seals_at_once_exactly_one_is_told() {
    let bed = Bed::open().await;
    for round in 0..20 {
        let tally = open(&bed, json!({})).await;
        post(&bed, &tally, "add", json!({"count": 32})).await;
        let (seal, ack) = (format!("/v1/tallies/{tally}/seal"), format!("/v1/tallies/{tally}/ack"));
        let seals = (0..4).map(|_| bed.post(&seal, json!({})));
        let acks = (0..32u64).map(|n| bed.post(&ack, json!({"items": [(n + round) % 32]})));
        let (sealed, acked) =
            tokio::join!(futures_util::future::join_all(seals), futures_util::future::join_all(acks));
        let told = sealed.into_iter().chain(acked).filter(|reply| reply.json()["completed_now"] == true);
        assert_eq!(told.count(), 1, "round {round}");
    }
}

#[tokio::test]
async fn figures_and_metrics_show_tallies() {
    let bed = Bed::open().await;
    let tally = sealed(&bed, 10).await;
    open(&bed, json!({})).await;
    post(&bed, &tally, "ack", json!({"items": [[0, 3]]})).await;
    post(&bed, &tally, "fail", json!({"items": [4]})).await;
    let stats = bed.get("/v1/stats").await.good()["tallies"].clone();
    assert_eq!((&stats["counts"]["open"], &stats["counts"]["sealed"]), (&json!(1), &json!(1)));
    let seen = &stats["under_way"][0];
    assert_eq!((&seen["tally"], &seen["progress"]), (&json!(tally), &json!(0.5)));
    assert!(seen["per_second"].is_number());
    let metrics = bed.get("/metrics").await.text;
    for line in [
        "tramline_tallies{state=\"sealed\"} 1",
        "tramline_tally_items_total{outcome=\"done\"} 4",
        "tramline_tally_items_total{outcome=\"failed\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
}
