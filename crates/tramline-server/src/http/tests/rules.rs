//! Rules by pattern over HTTP.

use super::bed::Bed;
use serde_json::{Value, json};

async fn bed() -> Bed {
    let bed = Bed::open().await;
    for name in ["acme%2Fmail", "acme%2Fsms", "rival"] {
        bed.put(&format!("/v1/subscriptions/{name}"), json!({"topics": ["t"]})).await.good();
    }
    bed
}

async fn rules(bed: &Bed, name: &str) -> Vec<Value> {
    let shown = bed.get(&format!("/v1/subscriptions/{name}")).await.good();
    shown["rules"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_rule_by_pattern_is_set_shown_and_removed() {
    let bed = bed().await;
    let body =
        json!({"pattern": "acme/*", "kind": "pause", "reason": "moving", "until": "2999-01-01T00:00:00Z"});
    let reply = bed.post("/v1/rules", body).await;
    assert_eq!(reply.status, 201);
    let rule = reply.json();
    assert_eq!(
        (&rule["pattern"], &rule["kind"], &rule["subscriptions"]),
        (&json!("acme/*"), &json!("pause"), &json!(2))
    );
    let held = rules(&bed, "acme%2Fmail").await;
    assert_eq!((&held[0]["pattern"], &held[0]["rule"]), (&json!("acme/*"), &rule["id"]));
    assert_eq!((&held[0]["reason"], held[0]["until"].is_string()), (&json!("moving"), true));
    assert!(rules(&bed, "rival").await.is_empty());
    bed.put("/v1/subscriptions/acme%2Fnew", json!({"topics": ["t"]})).await.good();
    assert_eq!(rules(&bed, "acme%2Fnew").await.len(), 1);
    let listed = bed.get("/v1/rules").await.good();
    assert_eq!((&listed["items"][0]["id"], &listed["items"][0]["subscriptions"]), (&rule["id"], &json!(3)));
    let path = format!("/v1/rules/{}", rule["id"].as_str().unwrap());
    assert_eq!(bed.delete(&format!("{path}?reason=over")).await.good()["subscriptions"], 3);
    bed.delete(&path).await.problem(404);
    assert!(rules(&bed, "acme%2Fmail").await.is_empty());
    let audit = bed.app.tram.audit("acme/mail", 10).await.unwrap();
    assert_eq!(audit.iter().map(|act| &*act.reason).collect::<Vec<_>>(), ["over", "moving"]);
}

#[tokio::test]
async fn rules_by_name_and_by_pattern_hold_together_and_are_counted() {
    let bed = bed().await;
    bed.post("/v1/rules", json!({"pattern": "**", "kind": "block"})).await.good();
    let until = "2999-01-01T00:00:00.000Z";
    let pause = json!({"pattern": "acme/**", "kind": "pause", "reason": "moving", "until": until});
    bed.post("/v1/rules", pause).await.good();
    let left = bed.post("/v1/subscriptions/acme%2Fmail/pause", json!({})).await.good();
    assert_eq!(left["rules"].as_array().unwrap().len(), 3);
    let left = bed.post("/v1/subscriptions/acme%2Fmail/resume", json!({})).await.good();
    assert_eq!(left["rules"].as_array().unwrap().len(), 2, "what comes from a pattern stays");
    let stats = bed.get("/v1/stats").await.good();
    let stopped =
        stats["subscriptions"].as_array().unwrap().iter().find(|one| one["name"] == "acme/mail").unwrap();
    assert_eq!(stopped["stopped_by"], json!(["block", "pause"]));
    let pause = &stopped["rules"][1];
    assert_eq!(
        [&pause["by"], &pause["reason"], &pause["until"]],
        [&json!("local"), &json!("moving"), &json!(until)]
    );
    let metrics = bed.get("/metrics").await.text;
    assert!(metrics.contains("tramline_rules{subscription=\"acme/mail\",kind=\"pause\"} 1"), "{metrics}");
    assert!(metrics.contains("tramline_rules{subscription=\"rival\",kind=\"block\"} 1"));
}

#[tokio::test]
async fn a_list_of_rules_has_pages() {
    let bed = bed().await;
    for n in 0..5 {
        bed.post("/v1/rules", json!({"pattern": format!("q{n}"), "kind": "pause"})).await.good();
    }
    let (mut seen, mut after) = (0, String::new());
    loop {
        let page = bed.get(&format!("/v1/rules?limit=2&after={after}")).await.good();
        seen += page["items"].as_array().unwrap().len();
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, 5);
    bed.get("/v1/rules?after=x").await.problem(422);
}

#[tokio::test]
async fn rules_that_make_no_sense_are_refused() {
    let bed = bed().await;
    for bad in [
        json!({}),
        json!({"pattern": "acme/*"}),
        json!({"pattern": "a*", "kind": "pause"}),
        json!({"pattern": "", "kind": "pause"}),
        json!({"pattern": "**/a", "kind": "pause"}),
        json!({"pattern": "a", "kind": "stop"}),
        json!({"pattern": "a", "kind": "pause", "until": "tomorrow"}),
        json!({"pattern": "a", "kind": "pause", "until": "2020-01-01T00:00:00Z"}),
        json!({"pattern": "a", "kind": "pause", "reason": "x".repeat(1_001)}),
        json!({"pattern": "a", "kind": "pause", "topics": ["x"]}),
    ] {
        bed.post("/v1/rules", bad).await.problem(422);
    }
    let ended = json!({"until": "2020-01-01T00:00:00Z"});
    bed.post("/v1/subscriptions/rival/pause", ended).await.problem(422);
    assert_eq!(rules(&bed, "rival").await, [Value::Null; 0]);
    for unknown in ["0", "x", "99999999999999999999", "-1"] {
        bed.delete(&format!("/v1/rules/{unknown}")).await.problem(404);
    }
}

#[tokio::test]
async fn who_did_what_to_a_subscription_is_kept() {
    let bed = bed().await;
    bed.post("/v1/subscriptions/rival/pause", json!({"reason": "moving"})).await.good();
    bed.post("/v1/subscriptions/rival/resume", json!({"reason": "moved"})).await.good();
    bed.post("/v1/rules", json!({"pattern": "acme/*", "kind": "block"})).await.good();
    let record = bed.get("/v1/subscriptions/rival/audit").await.good();
    let told = record["items"].as_array().unwrap().iter();
    let told: Vec<_> = told.map(|entry| (&entry["action"], &entry["reason"], &entry["pattern"])).collect();
    let by_name = Value::Null;
    assert_eq!(
        told,
        [(&json!("resume"), &json!("moved"), &by_name), (&json!("pause"), &json!("moving"), &by_name)]
    );
    let newest = bed.get("/v1/subscriptions/rival/audit?limit=1").await.good();
    assert_eq!(
        (newest["items"].as_array().unwrap().len(), &newest["items"][0]["action"]),
        (1, &json!("resume"))
    );
    let record = bed.get("/v1/subscriptions/acme%2Fsms/audit").await.good();
    assert_eq!(
        (&record["items"][0]["action"], &record["items"][0]["pattern"]),
        (&json!("block"), &json!("acme/*"))
    );
    bed.get("/v1/subscriptions/nobody/audit").await.problem(404);
}
