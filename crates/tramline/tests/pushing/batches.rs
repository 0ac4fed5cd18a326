//! When batches go, and what is in them.

use crate::bed::*;
use crate::on_every_store;
use tramline::{Format, Push};

on_every_store! {
    async fn an_event_is_sent_at_once_where_batches_do_not_gather(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(bed.push()).await;
        bed.emit(&["a"]).await;
        let request = bed.receiver.next().await;
        assert_eq!(request.payloads(), ["a"]);
        assert_eq!(request.headers["content-type"], "application/json");
        assert_eq!(request.json()["subscription"], "s");
        assert_eq!(bed.counts().await.leased, 1);
        request.answer(204);
        bed.settled().await;
        bed.close().await;
    }

    async fn a_full_batch_goes_at_once_and_a_smaller_one_when_its_first_event_has_waited(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { timeout: MINUTE, max_events: 3, ..bed.push() }).await;
        bed.emit(&["1", "2", "3", "4", "5", "6", "7"]).await;
        let (first, second) = (bed.receiver.next().await, bed.receiver.next().await);
        let mut sent = [first.payloads(), second.payloads()];
        sent.sort();
        assert_eq!(sent, [["1", "2", "3"], ["4", "5", "6"]]);
        first.answer(200);
        second.answer(200);
        until("the full batches are done", async || bed.counts().await.leased == 0).await;
        assert_eq!(bed.counts().await.ready, 1, "the rest gathers");
        bed.clock.advance(MINUTE - SECOND);
        bed.emit(&["8"]).await;
        until("it was seen", async || bed.counts().await.ready == 2).await;
        assert!(bed.is_quiet().await);
        bed.clock.advance(SECOND);
        let last = bed.receiver.next().await;
        assert_eq!(last.payloads(), ["7", "8"]);
        last.answer(200);
        bed.settled().await;
        bed.close().await;
    }

    async fn a_response_can_name_the_events_that_failed_and_only_those_come_again(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { timeout: SECOND, max_events: 3, ..bed.push() }).await;
        bed.emit(&["a", "b", "c"]).await;
        let request = bed.receiver.next().await;
        let ids = request.ids();
        let body = format!(r#"{{"failed": [{{"id": "{}", "delay_ms": 30000, "error": "busy"}}]}}"#, ids[1]);
        request.answer_with(200, "", &body);
        until("two are done", async || bed.counts().await.delayed == 1).await;
        assert_eq!(bed.counts().await.leased, 0);
        bed.clock.advance(MINUTE / 2 - SECOND);
        assert!(bed.is_quiet().await);
        bed.clock.advance(SECOND);
        let again = bed.receiver.next().await;
        assert_eq!((again.ids(), again.json()["events"][0]["attempt"].as_u64()), (vec![ids[1].clone()], Some(2)));
        again.answer(200);
        bed.settled().await;
        let health = bed.health().await;
        assert_eq!((health.failures, health.points), (0, 100));
        bed.close().await;
    }

    async fn every_format_is_sent_as_what_it_is(bed: Bed) {
        let mut bed = bed;
        for (format, content_type) in [
            (Format::CloudeventsBatch, "application/cloudevents-batch+json"),
            (Format::Cloudevents, "application/cloudevents+json"),
            (Format::Routemaster, "application/json"),
        ] {
            let headers = [("x-team".to_owned(), "orders".to_owned())].into();
            bed.subscribe(Push { format, headers, ..bed.push() }).await;
            // The node has learned of it when it sends in the new format.
            bed.emit(&["a"]).await;
            let request = bed.receiver.next().await;
            assert_eq!(request.headers["content-type"], content_type);
            assert_eq!(request.headers["x-team"], "orders");
            request.answer(200);
            bed.settled().await;
            bed.tram.delete_subscription("s").await.unwrap();
        }
        bed.close().await;
    }

    async fn no_more_than_the_rate_is_sent(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { rate: Some(5), max_events: 2, ..bed.push() }).await;
        bed.emit(&["1", "2", "3", "4", "5", "6", "7", "8"]).await;
        let mut sent = 0;
        while sent < 5 {
            let request = bed.receiver.next().await;
            sent += request.payloads().len();
            request.answer(200);
        }
        assert_eq!(sent, 5);
        until("they are done", async || bed.counts().await.leased == 0).await;
        assert!(bed.is_quiet().await);
        bed.clock.advance(SECOND);
        while sent < 8 {
            let request = bed.receiver.next().await;
            sent += request.payloads().len();
            request.answer(200);
        }
        bed.settled().await;
        bed.close().await;
    }

    async fn no_more_requests_than_the_concurrency_are_under_way(bed: Bed) {
        let mut bed = bed;
        bed.subscribe(Push { concurrency: 2, max_events: 1, ..bed.push() }).await;
        bed.emit(&["1", "2", "3", "4"]).await;
        let (first, second) = (bed.receiver.next().await, bed.receiver.next().await);
        assert_eq!(bed.counts().await.leased, 2);
        assert!(bed.is_quiet().await);
        first.answer(200);
        let third = bed.receiver.next().await;
        assert!(bed.is_quiet().await);
        second.answer(200);
        third.answer(200);
        bed.receiver.next().await.answer(200);
        bed.settled().await;
        bed.close().await;
    }
}
