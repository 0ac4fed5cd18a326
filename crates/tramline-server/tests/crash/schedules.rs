//! Schedules run beside the load, and whatever is killed, each of their runs is emitted once.

use crate::node::{Node, until_true};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

const TOPIC: &str = "ticks";
/// Each is put at a moment of its own, so that whenever something is killed one of them is about to run.
const COUNT: usize = 40;
const EVERY: Duration = Duration::from_secs(1);

/// Lets them run. What is due while nobody is there is made up for.
pub(crate) async fn start(node: &Node) {
    for number in 0..COUNT {
        let wish = json!({ "every_ms": EVERY.as_millis(), "topic": TOPIC, "key": format!("key:{}", number % 7),
            "missed": "all" });
        node.put(&format!("/v1/schedules/s{number}"), wish).await;
    }
}

/// Stops them, and looks at all that they have emitted. Gives how much that is.
pub(crate) async fn check(node: &Node) -> usize {
    let mut stopped: HashMap<String, Value> = HashMap::new();
    for number in 0..COUNT {
        let name = format!("s{number}");
        until_true(async || !node.get(&format!("/v1/schedules/{name}")).await["last_run_at"].is_null()).await;
        let schedule = node.post(&format!("/v1/schedules/{name}/pause"), json!({})).await;
        stopped.insert(name, schedule);
    }
    let runs = runs(node).await;
    for (name, schedule) in &stopped {
        let times = &runs[name];
        let first = time(&schedule["created_at"]) + EVERY;
        let last = time(&schedule["last_run_at"]);
        let expected =
            std::iter::successors(Some(first), |run| Some(*run + EVERY)).take_while(|run| *run <= last);
        let expected: Vec<jiff::Timestamp> = expected.collect();
        assert_eq!(*times, expected, "{name} ran at other times");
    }
    runs.values().map(Vec::len).sum()
}

/// For which times each schedule has run, in the order in which that was emitted.
async fn runs(node: &Node) -> HashMap<String, Vec<jiff::Timestamp>> {
    let mut runs: HashMap<String, Vec<jiff::Timestamp>> = HashMap::new();
    let mut after = "0".to_owned();
    loop {
        let page = node.get(&format!("/v1/topics/{TOPIC}/events?after={after}&limit=500")).await;
        for event in page["items"].as_array().unwrap() {
            let headers = &event["headers"];
            let name = headers["tramline-schedule"].as_str().unwrap().to_owned();
            runs.entry(name).or_default().push(time(&headers["tramline-scheduled-at"]));
        }
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return runs,
        }
    }
}

fn time(value: &Value) -> jiff::Timestamp {
    value.as_str().unwrap().parse().unwrap()
}
