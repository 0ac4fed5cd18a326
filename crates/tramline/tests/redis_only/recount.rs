//! Tallies are counted anew in steps, however many parts they have.

use crate::bed::Server;
use redis::Value;
use std::time::Duration;
use tramline::model::id::TallyId;
use tramline::model::tally::{Ack, Ending, Items, NewTally, TallyState};
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs_tally::{
    AckItems, AddItems, NameTally, OpenTally, SealTally, SweepTallies, SweptTallies,
};

/// More parts than are counted at a time, and two of them stay under way.
const PART: u64 = 4_096;
const PARTS: u64 = 700;

async fn sweep(store: &RedisStore, hours: u64) -> SweptTallies {
    let week = Duration::from_secs(7 * 24 * 3600);
    let now = store.now().await.unwrap().after(Duration::from_secs(hours * 3600));
    let sweep = SweepTallies { keep_open: week, keep_sealed: week, limit: 100, now: Some(now) };
    store.sweep_tallies(sweep).await.unwrap()
}

async fn ack(store: &RedisStore, tally: TallyId, first: u64, last: u64) {
    let acks = vec![Ack { tally, items: vec![Items { first, last }], ending: Ending::Done }];
    store.ack_items(AckItems { acks, by: 1, now: None }).await.unwrap();
}

async fn replace_in_row(server: &Server, tally: TallyId, before: &str, after: &str) {
    let row = server.command(&["HGET", "{tramline}:tallies", &tally.to_string()]).await;
    let Value::BulkString(row) = row else { panic!("no row") };
    let row = String::from_utf8(row).unwrap();
    assert!(row.contains(before), "{row}");
    let row = row.replace(before, after);
    server.command(&["HSET", "{tramline}:tallies", &tally.to_string(), &row]).await;
}

#[tokio::test]
async fn a_tally_of_many_parts_whose_row_is_wrong_is_put_right() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let tally = store.open_tally(OpenTally { tally: NewTally::new(), now: None }).await.unwrap().id;
    let add = AddItems { tally, count: PARTS * PART, within: None, token: None, now: None };
    store.add_items(add).await.unwrap();
    store.seal_tally(SealTally { tally, expected: None, by: 1, now: None }).await.unwrap();
    let last = PARTS * PART - 1;
    ack(&store, tally, 10, last - 10).await;
    let look = async || store.tally(NameTally { tally, now: None }).await.unwrap().unwrap();
    assert_eq!(look().await.done, PARTS * PART - 20);
    assert_eq!(sweep(&store, 2).await.repaired, 0, "nothing is wrong");

    replace_in_row(&server, tally, "\"parts_left\":2", "\"parts_left\":3").await;
    ack(&store, tally, 0, 9).await;
    ack(&store, tally, last - 9, last).await;
    assert_eq!(look().await.state, TallyState::Sealed, "it is stuck");
    assert_eq!(look().await.done, PARTS * PART);
    assert_eq!(sweep(&store, 4).await.repaired, 1);
    assert_eq!(look().await.state, TallyState::Complete);
}
