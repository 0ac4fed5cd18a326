//! The order in which events reach a receiver.

use crate::bed::*;
use crate::on_every_store;
use tramline::{Event, Ordering, Push};

on_every_store! {
    async fn in_the_order_of_arrival_one_batch_follows_the_other_over_all_topics(bed: Bed) {
        let mut bed = bed;
        bed.subscribe_in_order(Ordering::Subscriber, Push { max_events: 2, concurrency: 4, ..bed.push() }).await;
        for n in 0..6 {
            let topic = bed.line()[n % bed.line().len()];
            let event = Event::json(topic, &n.to_string()).unwrap().key(format!("k{}", n % 3));
            bed.tram.emit(event).await.unwrap();
        }
        let mut seen = Vec::new();
        while seen.len() < 6 {
            let request = bed.receiver.next().await;
            assert!(bed.is_quiet().await, "one at a time");
            seen.extend(request.payloads());
            request.answer(200);
        }
        assert_eq!(seen, ["0", "1", "2", "3", "4", "5"]);
        bed.settled().await;
        bed.close().await;
    }

    async fn in_the_order_of_arrival_nothing_passes_a_failed_batch(bed: Bed) {
        let mut bed = bed;
        bed.subscribe_in_order(Ordering::Subscriber, Push { max_events: 2, ..bed.push() }).await;
        let emit = async |names: &[&str]| {
            let events: Vec<_> = names.iter().map(|name| event(name).key("k")).collect();
            bed.tram.emit(events).await.unwrap();
        };
        emit(&["1", "2", "3"]).await;
        let first = bed.receiver.next().await;
        let sent = first.payloads();
        first.answer(500);
        bed.failed(1).await;
        emit(&["4"]).await;
        bed.clock.advance(SECOND * 5);
        let mut seen = Vec::new();
        let again = bed.receiver.next().await;
        assert_eq!(again.payloads()[..sent.len()], sent);
        seen.extend(again.payloads());
        again.answer(200);
        while seen.len() < 4 {
            let next = bed.receiver.next().await;
            seen.extend(next.payloads());
            next.answer(200);
        }
        assert_eq!(seen, ["1", "2", "3", "4"]);
        bed.settled().await;
        bed.close().await;
    }

    async fn keys_go_side_by_side_and_each_in_its_order(bed: Bed) {
        let mut bed = bed;
        let lanes = tramline::TopicSettings::lanes(32);
        bed.tram.put_topic("t", lanes).await.unwrap();
        bed.subscribe_in_order(Ordering::Key, Push { max_events: 1, concurrency: 2, ..bed.push() }).await;
        // Two keys of different lanes.
        let keyed = |key: &str, n: u32| event(&format!("{key}{n}")).key(key);
        bed.tram.emit(vec![keyed("a", 1), keyed("b", 1), keyed("a", 2), keyed("b", 2)]).await.unwrap();
        let (first, second) = (bed.receiver.next().await, bed.receiver.next().await);
        let mut sent = [first.payloads(), second.payloads()].concat();
        sent.sort();
        assert_eq!(sent, ["a1", "b1"], "two keys at once, and no later event of either");
        // One fails: its key waits, the other goes on.
        let (a, b) = if first.payloads() == ["a1"] { (first, second) } else { (second, first) };
        a.answer(500);
        until("it failed", async || bed.health().await.failed == 1).await;
        b.answer(200);
        bed.clock.advance(SECOND);
        let next = bed.receiver.next().await;
        assert_eq!(next.payloads(), ["b2"]);
        next.answer(200);
        bed.clock.advance(SECOND * 5);
        for expected in ["a1", "a2"] {
            let next = bed.receiver.next().await;
            assert_eq!(next.payloads(), [expected]);
            next.answer(200);
        }
        bed.settled().await;
        bed.close().await;
    }

    async fn what_follows_a_failed_event_of_its_key_comes_again_whatever_the_receiver_says(bed: Bed) {
        let mut bed = bed;
        bed.subscribe_in_order(Ordering::Key, Push { max_events: 10, timeout: SECOND, ..bed.push() }).await;
        let events: Vec<_> = ["1", "2", "3"].iter().map(|name| event(name).key("k")).collect();
        bed.tram.emit(events).await.unwrap();
        bed.clock.advance(SECOND);
        let request = bed.receiver.next().await;
        let ids = request.ids();
        request.answer_with(200, "", &format!(r#"{{"failed": [{{"id": "{}"}}]}}"#, ids[1]));
        until("one is done", async || {
            let counts = bed.counts().await;
            counts.leased == 0 && counts.delayed + counts.parked + counts.ready == 2
        }).await;
        bed.clock.advance(SECOND * 5);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let request = bed.receiver.next().await;
            seen.extend(request.payloads());
            request.answer(200);
        }
        assert_eq!(seen, ["2", "3"]);
        bed.settled().await;
        bed.close().await;
    }
}
