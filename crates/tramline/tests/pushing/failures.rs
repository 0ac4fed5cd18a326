//! What happens when a receiver does not take a batch.

use crate::bed::*;
use crate::on_every_store;
use std::collections::HashSet;
use std::time::Duration;
use tramline::engine::push::NOTICES;
use tramline::{Counts, EventId, Policy, Push, Retry, Verdict};

on_every_store! {
    async fn a_failed_batch_comes_again_as_the_same_batch_and_is_written_down(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { timeout: SECOND, max_events: 2, ..bed.push() }).await;
        bed.emit(&["a", "b"]).await;
        let first = bed.receiver.next().await;
        let batch = first.json()["batch"].clone();
        first.answer_with(500, "", "out of order");
        until("it is delayed", async || bed.counts().await.delayed == 2).await;
        // The first delay of the list is 5 seconds.
        bed.clock.advance(SECOND * 4);
        assert!(bed.is_quiet().await);
        bed.clock.advance(SECOND);
        let again = bed.receiver.next().await;
        assert_eq!((&again.json()["batch"], again.payloads().len()), (&batch, 2));
        again.answer(200);
        bed.settled().await;
        until("both are written down", async || bed.tram.attempts("s", i64::MAX, 10).await.unwrap().len() == 2).await;
        let attempts = bed.tram.attempts("s", i64::MAX, 10).await.unwrap();
        let verdicts: Vec<_> = attempts.iter().map(|one| (one.attempt.verdict, one.attempt.status)).collect();
        assert_eq!(verdicts, [(Verdict::Delivered, Some(200)), (Verdict::Failed, Some(500))]);
        assert_eq!(attempts[1].attempt.excerpt, "out of order");
        let health = bed.health().await;
        assert_eq!((health.sent, health.batches, health.failed, health.failing_since), (2, 1, 1, None));
        bed.close().await;
    }

    async fn what_is_out_of_attempts_is_dead_and_can_be_replayed(bed: Bed) {
        let mut bed = bed;
        let policy = Policy { push: Some(bed.push()), retry: Retry::never(), ..Policy::default() };
        bed.tram.put_subscription("s", &["t", "u"], policy, tramline::Start::Now).await.unwrap();
        bed.emit(&["a"]).await;
        bed.receiver.next().await.answer(400);
        until("it is dead", async || bed.counts().await.dead == 1).await;
        bed.clock.advance(MINUTE);
        let replayed = bed.tram.replay("s", tramline::store::verbs::Which::All).await.unwrap();
        assert_eq!(replayed, 1);
        let again = bed.receiver.next().await;
        assert_eq!(again.json()["events"][0]["replayed"], true);
        again.answer(200);
        bed.settled().await;
        bed.close().await;
    }

    /// A receiver that takes what it has seen under an id for done, as it is advised to, never did what was replayed once more, nor what
    /// another subscription sent it.
    async fn an_id_is_that_of_one_subscription_and_one_replay_and_the_same_in_every_attempt(bed: Bed) {
        let mut bed = bed;
        let policy = Policy { push: Some(bed.push()), retry: Retry::constant(2, SECOND), ..Policy::default() };
        for name in ["s", "other"] {
            bed.tram.put_subscription(name, &["t"], policy.clone(), tramline::Start::Now).await.unwrap();
        }
        bed.emit(&["a"]).await;
        let mut ids = HashSet::new();
        for _ in 0..2 {
            let sent = bed.receiver.next().await;
            assert!(ids.insert(sent.json()["batch"].clone()), "one for each subscription");
            let fails = sent.json()["subscription"] == "s";
            sent.answer(if fails { 500 } else { 200 });
        }
        // Or else it would be sent again when its lease ends.
        until("the other one is done", async || bed.tram.stats("other").await.unwrap().counts == Counts::default()).await;
        for failed in [2, 4, 6] {
            until("it is delayed", async || bed.counts().await.delayed == 1).await;
            // It is left alone for longer and longer.
            bed.clock.advance(MINUTE * 60);
            let again = bed.receiver.next().await;
            assert!(ids.contains(&again.json()["batch"]), "the same in every attempt");
            again.answer(500);
            bed.failed(failed).await;
            until("it is dead", async || bed.counts().await.dead == 1).await;
            bed.clock.advance(MINUTE * 60);
            bed.tram.replay("s", tramline::store::verbs::Which::All).await.unwrap();
            let replayed = bed.receiver.next().await;
            assert!(ids.insert(replayed.json()["batch"].clone()), "another one for each replay");
            replayed.answer(if failed == 6 { 200 } else { 500 });
        }
        bed.settled().await;
        for _ in 0..2 {
            bed.clock.advance(SECOND);
            assert_eq!(bed.tram.replay_since("s", START, None).await.unwrap().count, 1);
            let again = bed.receiver.next().await;
            assert!(ids.insert(again.json()["batch"].clone()), "also of what was done");
            again.answer(200);
            bed.settled().await;
        }
        bed.close().await;
    }

    async fn a_subscriber_that_fails_is_left_alone_and_then_probed_with_one_request(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { max_events: 1, concurrency: 4, ..bed.push() }).await;
        bed.emit(&["1", "2", "3", "4", "5", "6"]).await;
        for _ in 0..4 {
            bed.receiver.next().await.answer(503);
        }
        bed.failed(4).await;
        assert!(bed.is_quiet().await, "two are due, but it is left alone");
        bed.clock.advance(SECOND);
        let probe = bed.receiver.next().await;
        assert!(bed.is_quiet().await);
        probe.answer(200);
        bed.receiver.next().await.answer(200);
        until("those are done", async || bed.counts().await.leased == 0).await;
        assert_eq!(bed.counts().await.delayed, 4);
        bed.clock.advance(SECOND * 5);
        for _ in 0..4 {
            bed.receiver.next().await.answer(200);
        }
        bed.settled().await;
        bed.close().await;
    }

    async fn what_was_claimed_ahead_goes_back_without_what_is_under_way(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { max_events: 1, concurrency: 2, ..bed.push() }).await;
        bed.emit(&["quick", "as well"]).await;
        for _ in 0..2 {
            bed.receiver.next().await.answer(200);
        }
        bed.settled().await;
        bed.emit(&["1", "2", "3", "4", "5", "6"]).await;
        let (fails, waits) = (bed.receiver.next().await, bed.receiver.next().await);
        let (failed, waiting) = (fails.ids(), waits.ids());
        fails.answer(500);
        let after = Counts { ready: 4, delayed: 1, leased: 1, ..Counts::default() };
        until("the others went back", async || bed.counts().await == after).await;
        waits.answer(200);
        for _ in 0..4 {
            let request = bed.receiver.next().await;
            assert!(![&failed, &waiting].contains(&&request.ids()), "it was under way, or is to wait");
            request.answer(200);
        }
        until("only the failed one is left", async || bed.counts().await.leased == 0).await;
        bed.clock.advance(SECOND * 5);
        let again = bed.receiver.next().await;
        assert_eq!(again.ids(), failed);
        again.answer(200);
        bed.settled().await;
        bed.close().await;
    }

    async fn retry_after_is_obeyed(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(bed.push()).await;
        bed.emit(&["a"]).await;
        bed.receiver.next().await.answer_with(429, "retry-after: 120\r\n", "");
        until("it is delayed", async || bed.counts().await.delayed == 1).await;
        bed.emit(&["b"]).await;
        bed.clock.advance(SECOND * 119);
        assert!(bed.is_quiet().await);
        bed.clock.advance(SECOND);
        let again = bed.receiver.next().await;
        let both = again.payloads().len() == 2;
        again.answer(200);
        if !both {
            bed.receiver.next().await.answer(200);
        }
        bed.settled().await;
        bed.close().await;
    }

    async fn gone_disables_and_an_event_says_so_and_enabling_sends_what_waited(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(bed.push()).await;
        bed.emit(&["a"]).await;
        bed.receiver.next().await.answer(410);
        until("somebody was told", async || {
            bed.tram.read_log(NOTICES, EventId(0), 10).await.is_ok_and(|page| !page.events.is_empty())
        }).await;
        let page = bed.tram.read_log(NOTICES, EventId(0), 10).await.unwrap();
        assert_eq!(page.events.len(), 1);
        assert_eq!((&*page.events[0].kind, page.events[0].key.as_deref()), ("subscription.disabled", Some("s")));
        until("it was given back", async || bed.counts().await.ready == 1).await;
        bed.emit(&["b"]).await;
        bed.clock.advance(MINUTE * 60);
        assert!(bed.is_quiet().await && bed.health().await.disabled.is_some());
        bed.tram.enable_push("s", "me").await.unwrap();
        let request = bed.receiver.next().await;
        assert_eq!((request.payloads(), request.json()["events"][0]["attempt"].as_u64()), (vec!["a".into(), "b".into()], Some(1)));
        request.answer(200);
        bed.settled().await;
        let audit: Vec<String> = bed.tram.audit("s", 10).await.unwrap().into_iter().map(|one| one.action).collect();
        assert_eq!(audit, ["enable"]);
        bed.close().await;
    }

    async fn a_period_without_success_disables(bed: Bed) {
        let mut bed = bed;
        let disable_after = Some(Duration::from_secs(600));
        bed.subscribe(Push { disable_after, ..bed.push() }).await;
        bed.emit(&["a"]).await;
        bed.receiver.next().await.answer(500);
        bed.failed(1).await;
        bed.clock.advance(MINUTE * 10);
        bed.receiver.next().await.answer(500);
        until("it is disabled", async || bed.health().await.disabled.is_some()).await;
        assert!(bed.health().await.disabled.unwrap().reason.contains("nothing has succeeded"));
        bed.close().await;
    }

    async fn an_address_that_must_not_be_reached_is_a_failure_that_says_so(bed: Bed) {
        let mut bed = bed;
        bed.node().stop().await;
        bed.subscribe(Push { callback: "http://10.0.0.1/".into(), ..bed.push() }).await;
        let client = tramline::push::Client::new(tramline::push::Settings::default());
        let shutdown = tramline::Shutdown::new();
        let running = tokio::spawn(bed.tram.pusher(client, bed.keyring.clone(), 4).run(shutdown.clone()));
        bed.emit(&["a"]).await;
        until("it failed", async || bed.health().await.failed == 1).await;
        let attempt = bed.tram.attempts("s", i64::MAX, 1).await.unwrap().pop().unwrap().attempt;
        assert!(attempt.status.is_none() && attempt.excerpt.contains("a private address"), "{}", attempt.excerpt);
        shutdown.start();
        running.await.unwrap();
        bed.close().await;
    }
}
