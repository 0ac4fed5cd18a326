//! A follower, cut off again and again.

use crate::stores::{Place, on_every_store};
use serde_json::json;
use std::sync::Arc;

on_every_store![a_follower_of_one_node_gets_all_that_is_emitted_at_another_and_comes_back_to_where_it_was,];

/// The id that a message of a stream ends with, and whether it had an event.
fn messages(text: &str) -> Vec<(i64, bool)> {
    let whole = text.split_inclusive("\n\n").filter(|message| message.ends_with("\n\n"));
    let ids = whole.filter_map(|message| Some((message.strip_prefix("id: ")?, message.contains("\ndata: "))));
    ids.map(|(rest, event)| (rest.split('\n').next().unwrap().parse().unwrap(), event)).collect()
}

async fn a_follower_of_one_node_gets_all_that_is_emitted_at_another_and_comes_back_to_where_it_was(
    place: Place,
) {
    const EMITTERS: usize = 4;
    const EMITS: usize = 25;
    let (first, second) = (Arc::new(place.node()), place.node());
    first.post("/v1/topics/t/events", json!({"payload": "before"})).await;
    let open = async |last: Option<i64>| {
        let request = second.http.get(second.url("/v1/topics/t/events?after=now"));
        let request = request.header("accept", "text/event-stream");
        let request = last.into_iter().fold(request, |it, last| it.header("last-event-id", last.to_string()));
        request.send().await.unwrap()
    };
    let mut stream = open(None).await;
    let emitters: Vec<_> = (0..EMITTERS)
        .map(|number| {
            let first = first.clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..EMITS {
                    let event = json!({"payload": 1, "key": format!("k{number}")});
                    let emitted = first.post("/v1/topics/t/events", event).await;
                    ids.push(emitted["events"][0]["id"].as_str().unwrap().parse::<i64>().unwrap());
                }
                ids
            })
        })
        .collect();
    let (mut seen, mut last) = (Vec::new(), None);
    while seen.len() < EMITTERS * EMITS {
        let mut text = String::new();
        // Cut off after a few messages, also after the one that only says where the stream began; and never waiting for more than come.
        let few = (1 + seen.len() % 9).min(EMITTERS * EMITS - seen.len());
        while messages(&text).len() < few {
            text += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
        }
        for (id, event) in messages(&text) {
            last = Some(id);
            seen.extend(event.then_some(id));
        }
        stream = open(last).await;
    }
    let mut emitted = Vec::new();
    for emitter in emitters {
        emitted.extend(emitter.await.unwrap());
    }
    emitted.sort_unstable();
    assert_eq!(seen, emitted);
}
