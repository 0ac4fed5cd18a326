//! Following a topic by server-sent events: what is stored and what comes, each once and in order, also across reconnections.

use super::bed::Bed;
use super::emitting::ids;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use std::sync::Arc;

const EVENTS: &str = "/v1/topics/t/events";

/// Somebody who follows, and what came so far.
struct Follower {
    body: Body,
    text: String,
}

impl Follower {
    async fn open(bed: &Bed, query: &str, last: Option<i64>) -> Follower {
        Follower::open_as(bed, None, query, last).await
    }

    async fn open_as(bed: &Bed, token: Option<&str>, query: &str, last: Option<i64>) -> Follower {
        let mut request = Request::get(format!("{EVENTS}{query}")).header("accept", "text/event-stream");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = bed.unread(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Follower { body: response.into_body(), text: String::new() }
    }

    /// Reads on; false at the end.
    async fn read(&mut self) -> bool {
        let Some(frame) = self.body.frame().await else { return false };
        self.text += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
        true
    }

    /// The events that came whole.
    fn seen(&self) -> Vec<i64> {
        let messages = self.text.split_inclusive("\n\n").filter(|message| message.ends_with("\n\n"));
        let data = messages.filter(|message| message.contains("\ndata: "));
        data.map(|message| message["id: ".len()..].split('\n').next().unwrap().parse().unwrap()).collect()
    }

    /// Waits for so many events.
    async fn events(&mut self, count: usize) -> Vec<i64> {
        while self.seen().len() < count {
            assert!(self.read().await, "the stream ended: {}", self.text);
        }
        self.seen()
    }
}

async fn emit(bed: &Bed, count: usize) -> Vec<i64> {
    ids(&bed.post(EVENTS, json!(vec![json!({"payload": {"a": "\n"}}); count])).await.good())
}

#[tokio::test]
async fn a_follower_gets_what_is_stored_and_what_comes_and_ends_when_the_server_drains() {
    let bed = Bed::open().await;
    let stored = emit(&bed, 3).await;
    let mut follower = Follower::open(&bed, "", Some(stored[0])).await;
    assert_eq!(follower.events(2).await, stored[1..]);
    let new = emit(&bed, 2).await;
    assert_eq!(follower.events(4).await, [&stored[1..], &new].concat());
    bed.app.draining.cancel();
    while follower.read().await {}
    assert_eq!(follower.seen().len(), 4);
}

/// A token was asked for when a stream began, and never again.
#[tokio::test]
async fn the_stream_of_a_token_that_was_dropped_ends() {
    let bed = Bed::guarded().await;
    emit(&bed, 1).await;
    let token = json!({"name": "reader", "scopes": ["consume"]});
    let token = bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned();
    let mut follower = Follower::open_as(&bed, Some(&token), "", None).await;
    assert_eq!(follower.events(1).await.len(), 1);
    bed.delete("/v1/tokens/reader").await.good();
    emit(&bed, 1).await;
    assert!(!follower.read().await, "{}", follower.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_beside_emitters_misses_nothing_and_repeats_nothing() {
    const EMITTERS: usize = 4;
    const EMITS: usize = 40;
    let bed = Arc::new(Bed::open().await);
    emit(&bed, 1).await;
    let emitters: Vec<_> = (0..EMITTERS)
        .map(|number| {
            let bed = bed.clone();
            tokio::spawn(async move {
                let mut emitted = Vec::new();
                for size in 0..EMITS {
                    emitted.extend(emit(&bed, 1 + (number + size) % 3).await);
                }
                emitted
            })
        })
        .collect();
    // Cut off again and again, wherever the stream is just then.
    let mut seen: Vec<i64> = Vec::new();
    let wanted =
        1 + (0..EMITTERS).flat_map(|n| (0..EMITS).map(move |size| 1 + (n + size) % 3)).sum::<usize>();
    while seen.len() < wanted {
        let mut follower = Follower::open(&bed, "", seen.last().copied()).await;
        // Never more than there will be: who waits for that waits for ever.
        let more = follower.events((1 + seen.len() % 7).min(wanted - seen.len())).await;
        seen.extend(more);
    }
    let mut emitted = vec![seen[0]];
    for emitter in emitters {
        emitted.extend(emitter.await.unwrap());
    }
    emitted.sort_unstable();
    assert_eq!(seen, emitted);
}

#[tokio::test]
async fn who_follows_from_now_gets_what_comes_and_nothing_of_before() {
    let bed = Bed::open().await;
    let request = Request::get(format!("{EVENTS}?after=now")).header("accept", "text/event-stream");
    bed.send(request.body(Body::empty()).unwrap()).await.problem(404);
    emit(&bed, 70).await;
    let mut follower = Follower::open(&bed, "?after=now", None).await;
    let new = emit(&bed, 2).await;
    assert_eq!(follower.events(2).await, new);
    let page = bed.get(&format!("{EVENTS}?after=now")).await.good();
    assert_eq!(page["items"], json!([]));
    let next = emit(&bed, 2).await;
    let page = bed.get(&format!("{EVENTS}?after={}", page["next"].as_str().unwrap())).await.good();
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["items"][0]["id"], next[0].to_string());
}

/// Without an id to come back with, it would begin at another now.
#[tokio::test]
async fn who_is_cut_off_before_the_first_event_misses_nothing_either() {
    let bed = Bed::open().await;
    emit(&bed, 1).await;
    let mut follower = Follower::open(&bed, "?after=now", None).await;
    assert!(follower.read().await);
    let start: i64 = follower.text.trim().strip_prefix("id: ").unwrap().parse().unwrap();
    drop(follower);
    let new = emit(&bed, 2).await;
    let mut follower = Follower::open(&bed, "?after=now", Some(start)).await;
    assert_eq!(follower.events(2).await, new);
}
