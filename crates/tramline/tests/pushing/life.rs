//! Nodes that come, stop and die; subscriptions that change.

use crate::bed::*;
use crate::on_every_store;
use std::collections::HashSet;
use tramline::{Event, Ordering, Policy, Push, Start, Time};

on_every_store! {
    async fn several_nodes_send_every_event_once(bed: Bed) {
        let mut bed = bed;
        let others: Vec<Node> = (0..3).map(|_| Node::start(&bed.process(), &bed.keyring)).collect();
        bed.subscribe(Push { max_events: 3, ..bed.push() }).await;
        let names: Vec<String> = (0..60).map(|n| n.to_string()).collect();
        for name in &names {
            bed.emit(&[name]).await;
        }
        let mut seen = Vec::new();
        while seen.len() < names.len() {
            let request = bed.receiver.next().await;
            seen.extend(request.payloads());
            request.answer(200);
        }
        let distinct: HashSet<&String> = seen.iter().collect();
        assert_eq!((seen.len(), distinct.len()), (60, 60));
        bed.settled().await;
        assert!(bed.is_quiet().await);
        for node in others {
            node.stop().await;
        }
        bed.close().await;
    }

    async fn the_batch_of_a_dead_sender_goes_again_when_its_lease_ends_and_counts_no_crash(bed: Bed) {
        let mut bed = bed;
        bed.subscribe_in_order(Ordering::Subscriber, bed.push()).await;
        bed.emit(&["a", "b"]).await;
        let lost = bed.receiver.next().await;
        let sent = lost.payloads();
        bed.node().kill();
        bed.node = Some(Node::start(&bed.process(), &bed.keyring));
        bed.emit(&["c"]).await;
        assert!(bed.is_quiet().await, "nothing passes what is being sent");
        // Request time-out and margin: 30 seconds.
        bed.clock.advance(SECOND * 31);
        let again = bed.receiver.next().await;
        assert_eq!(again.payloads()[..sent.len()], sent);
        assert_eq!(again.json()["events"][0]["attempt"], 1);
        let all = again.payloads().len() == 3;
        again.answer(200);
        if !all {
            bed.receiver.next().await.answer(200);
        }
        bed.settled().await;
        bed.close().await;
    }

    /// What gathers was looked for among what is free, so nobody ever claimed what a dead sender had; where there is an order, nothing
    /// that came later either.
    async fn the_batch_of_a_dead_sender_goes_again_where_batches_gather(bed: Bed) {
        let mut bed = bed;
        for ordering in [Ordering::None, Ordering::Key, Ordering::Subscriber] {
            let node = bed.node();
            let push = Push { timeout: SECOND, ..bed.push() };
            bed.subscribe_in_order(ordering, push).await;
            bed.emit(&["a", "b"]).await;
            until("they gather", async || bed.counts().await.ready == 2).await;
            bed.clock.advance(SECOND);
            let lost = bed.receiver.next().await;
            node.kill();
            bed.node = Some(Node::start(&bed.process(), &bed.keyring));
            bed.clock.advance(SECOND * 31);
            let again = bed.receiver.next().await;
            assert_eq!(again.payloads(), lost.payloads(), "{ordering:?}");
            again.answer(200);
            bed.settled().await;
            bed.tram.delete_subscription("s").await.unwrap();
        }
        bed.close().await;
    }

    /// Four subscribers that answered late had all places between them, and nobody else was sent anything.
    async fn a_subscriber_that_never_answers_leaves_room_for_others(bed: Bed) {
        let mut bed = bed;
        bed.node().stop().await;
        bed.node = Some(Node::with_room(&bed.tram, &bed.keyring, 8));
        let greedy = Push { max_events: 1, concurrency: 100, ..bed.push() };
        let greedy = Policy { push: Some(greedy), ..Policy::default() };
        bed.tram.put_subscription("greedy", &["greedy"], greedy, Start::Now).await.unwrap();
        let many: Vec<Event> = (0..20).map(|n| Event::json("greedy", &n.to_string()).unwrap()).collect();
        bed.tram.emit(many).await.unwrap();
        let mut unanswered = vec![bed.receiver.next().await];
        bed.subscribe(bed.push()).await;
        bed.emit(&["a"]).await;
        let sent = loop {
            let request = bed.receiver.next().await;
            match request.json()["subscription"] == "s" {
                true => break request,
                false => unanswered.push(request),
            }
        };
        sent.answer(200);
        bed.settled().await;
        assert!(unanswered.len() <= 2, "{} of 8", unanswered.len());
        drop(unanswered);
        bed.close().await;
    }

    /// It claimed first and then waited for room. Its lease ended meanwhile, others went on, and then it sent what was long done: again,
    /// and after what came later.
    async fn a_node_without_room_for_a_request_claims_nothing(bed: Bed) {
        let mut bed = bed;
        bed.node().stop().await;
        let cramped = Node::with_room(&bed.tram, &bed.keyring, 1);
        let slow = Policy { push: Some(bed.push()), ..Policy::default() };
        bed.tram.put_subscription("slow", &["slow"], slow, Start::Now).await.unwrap();
        bed.tram.emit(Event::json("slow", &"a").unwrap()).await.unwrap();
        let slow = bed.receiver.next().await;
        bed.subscribe_in_order(Ordering::Subscriber, bed.push()).await;
        bed.emit(&["a"]).await;
        bed.node = Some(Node::start(&bed.process(), &bed.keyring));
        let sent = bed.receiver.next().await;
        assert_eq!(sent.json()["subscription"], "s");
        sent.answer(200);
        bed.settled().await;
        slow.answer(200);
        cramped.stop().await;
        assert!(bed.is_quiet().await);
        bed.close().await;
    }

    async fn a_node_that_stops_finishes_what_is_under_way_and_begins_nothing(bed: Bed) {
        let mut bed = bed;
        bed.subscribe_in_order(Ordering::Subscriber, Push { max_events: 1, ..bed.push() }).await;
        bed.emit(&["a", "b"]).await;
        let request = bed.receiver.next().await;
        let node = bed.node();
        node.ask_to_stop();
        request.answer(200);
        node.stop().await;
        assert!(bed.is_quiet().await);
        let counts = bed.counts().await;
        assert_eq!((counts.ready, counts.leased), (1, 0));
        assert_eq!(bed.health().await.sent, 1, "what was sent is written down before it ends");
        bed.close().await;
    }

    async fn rules_stop_sending(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(bed.push()).await;
        bed.tram.pause("s", "me", "lunch", None).await.unwrap();
        bed.emit(&["a"]).await;
        until("it waits", async || bed.counts().await.ready == 1).await;
        bed.clock.advance(MINUTE);
        assert!(bed.is_quiet().await);
        bed.tram.resume("s", "me", "").await.unwrap();
        bed.receiver.next().await.answer(200);
        bed.settled().await;
        bed.close().await;
    }

    async fn a_receiver_may_have_to_agree_first(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { handshake: true, ..bed.push() }).await;
        bed.emit(&["a"]).await;
        let question = bed.receiver.next().await;
        assert_eq!((&*question.method, &*question.headers["webhook-request-origin"]), ("OPTIONS", "tramline"));
        question.answer(200);
        bed.failed(1).await; // that was no agreement
        bed.clock.advance(SECOND);
        let question = bed.receiver.next().await;
        assert_eq!(question.method, "OPTIONS");
        question.answer_with(200, "webhook-allowed-origin: *\r\n", "");
        let request = bed.receiver.next().await;
        assert_eq!((&*request.method, request.payloads()), ("POST", vec!["a".to_owned()]));
        request.answer(200);
        bed.settled().await;
        bed.emit(&["b"]).await;
        let request = bed.receiver.next().await;
        assert_eq!(request.method, "POST", "it is asked once");
        request.answer(200);
        bed.settled().await;
        bed.close().await;
    }

    async fn what_was_sent_since_a_time_is_sent_again(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(bed.push()).await;
        bed.emit(&["old"]).await;
        bed.receiver.next().await.answer(200);
        bed.settled().await;
        bed.clock.advance(MINUTE);
        let since: Time = bed.clock.now();
        for name in ["a", "b"] {
            bed.emit(&[name]).await;
            bed.receiver.next().await.answer(200);
            bed.settled().await;
        }
        let replayed = bed.tram.replay_since("s", since, None).await.unwrap();
        assert_eq!((replayed.count, replayed.next), (2, None));
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let request = bed.receiver.next().await;
            assert_eq!(request.json()["events"][0]["replayed"], true);
            seen.extend(request.payloads());
            request.answer(200);
        }
        seen.sort();
        assert_eq!(seen, ["a", "b"]);
        bed.settled().await;
        bed.close().await;
    }

    async fn only_the_last_attempts_are_kept(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { max_events: 1, concurrency: 8, ..bed.push() }).await;
        let names: Vec<String> = (0..230).map(|n| n.to_string()).collect();
        let events: Vec<_> = names.iter().map(|name| event(name)).collect();
        bed.tram.emit(events).await.unwrap();
        for _ in 0..230 {
            bed.receiver.next().await.answer(200);
        }
        bed.settled().await;
        bed.node().stop().await;
        let attempts = bed.tram.attempts("s", i64::MAX, 1_000).await.unwrap();
        assert_eq!((attempts.len(), bed.health().await.sent), (200, 230));
        assert!(attempts.is_sorted_by(|a, b| a.number > b.number));
        let page = bed.tram.attempts("s", attempts[9].number, 5).await.unwrap();
        assert_eq!(page, attempts[10..15]);
        bed.close().await;
    }
}
