//! The events of a key, back and forth, however many they are.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::Bench;
use tramline::{Direction, Event, EventId, Kind, Tramline};

/// Emits events of several keys in turn, and gives those of the first.
async fn emit(tram: &Tramline, count: usize, keys: &[&str]) -> Vec<EventId> {
    let mut of_first = Vec::new();
    for n in 0..count {
        let events: Vec<Event> = keys.iter().map(|key| Event::new("t", n.to_string()).key(*key)).collect();
        of_first.push(tram.emit(events).await.unwrap().ids()[0]);
    }
    of_first
}

/// All pages of a key, and how many there were.
async fn pages(tram: &Tramline, key: &str, direction: Direction, limit: u32) -> (Vec<EventId>, usize) {
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = tram.key_events("t", key, direction, after, limit).await.unwrap();
        assert!(page.events.len() <= limit as usize);
        assert!(page.events.iter().all(|event| event.key.as_deref() == Some(key)));
        seen.extend(page.events.iter().map(|event| event.id));
        pages += 1;
        after = page.next;
        if after.is_none() {
            return (seen, pages);
        }
    }
}

on_every_store! {
    async fn the_events_of_a_key_are_the_same_from_both_ends(bench: &Bench) {
        let tram = bench.process();
        let mut emitted = emit(&tram, 40, &["a", "b", "c"]).await;
        assert_eq!(pages(&tram, "a", Direction::Oldest, 7).await, (emitted.clone(), 6));
        emitted.reverse();
        assert_eq!(pages(&tram, "a", Direction::Newest, 7).await, (emitted, 6));
    }

    /// Such a chain is not followed back to its beginning for every page: the log is read instead.
    async fn a_long_chain_is_listed_from_its_beginning_too(bench: &Bench) {
        let tram = bench.process();
        let mut emitted = emit(&tram, 700, &["a", "b"]).await;
        let (seen, _) = pages(&tram, "a", Direction::Oldest, 100).await;
        assert_eq!(seen, emitted);
        emitted.reverse();
        assert_eq!(pages(&tram, "a", Direction::Newest, 100).await, (emitted, 7));
    }

    async fn from_any_event_the_chain_goes_both_ways(bench: &Bench) {
        let tram = bench.process();
        let emitted = emit(&tram, 5, &["a", "b"]).await;
        let from = async |direction| {
            let page = tram.key_events("t", "a", direction, Some(emitted[2]), 10).await.unwrap();
            page.events.iter().map(|event| event.id).collect::<Vec<_>>()
        };
        assert_eq!(from(Direction::Newest).await, [emitted[1], emitted[0]]);
        assert_eq!(from(Direction::Oldest).await, [emitted[3], emitted[4]]);
    }

    async fn a_key_without_events_has_no_chain_and_an_event_of_another_key_is_refused(bench: &Bench) {
        let tram = bench.process();
        let emitted = emit(&tram, 1, &["a", "b"]).await;
        assert!(tram.key_events("t", "nobody", Direction::Newest, None, 10).await.unwrap().events.is_empty());
        let wrong = tram.key_events("t", "b", Direction::Newest, Some(emitted[0]), 10).await.unwrap_err();
        assert_eq!(wrong.kind(), Kind::Invalid);
        let nowhere = tram.key_events("none", "a", Direction::Oldest, None, 10).await.unwrap_err();
        assert_eq!(nowhere.kind(), Kind::NotFound);
    }
}
