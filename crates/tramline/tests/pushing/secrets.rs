//! Requests that are signed, and who they say they are from.

use crate::bed::*;
use crate::on_every_store;
use http::{HeaderMap, HeaderName, HeaderValue};
use tramline::engine::push::{secret_purpose, user_purpose};
use tramline::push::{Keyring, Secret, Verifier};
use tramline::{Policy, Push, SealedSecret, SecretKind, Start, Time};

fn sealed(keyring: &Keyring, id: &str, secret: &Secret) -> SealedSecret {
    let kind = if secret.public().is_some() { SecretKind::Ed25519 } else { SecretKind::Hmac };
    let sealed = keyring.seal(&secret_purpose("s", id), secret.reveal().as_bytes()).unwrap();
    SealedSecret { id: id.to_owned(), kind, sealed, public: secret.public(), since: START }
}

fn headers(request: &Request) -> HeaderMap {
    let header = |(name, value): (&String, &String)| {
        (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
    };
    request.headers.iter().map(header).collect()
}

on_every_store! {
    async fn a_request_is_signed_with_all_secrets_and_either_verifies(bed: Bed) {
        let mut bed = bed;
        let (old, new) = (Secret::generate_hmac().unwrap(), Secret::generate_ed25519().unwrap());
        let secrets = vec![sealed(&bed.keyring, "2", &new), sealed(&bed.keyring, "1", &old)];
        let user = Some(bed.keyring.seal(&user_purpose("s"), b"some-uuid").unwrap());
        bed.subscribe(Push { secrets, user, ..bed.push() }).await;
        bed.emit(&["a"]).await;
        let request = bed.receiver.next().await;
        assert_eq!(request.headers["webhook-signature"].split(' ').count(), 2);
        assert_eq!(request.headers["authorization"], "Basic c29tZS11dWlkOng=");
        let now = Time(START.0 + 1_000);
        for key in [old.reveal(), new.public().unwrap()] {
            let verifier = Verifier::new([key.parse().unwrap()]);
            verifier.verify(&headers(&request), &request.body, now).unwrap();
            assert!(verifier.verify(&headers(&request), b"{}", now).is_err());
        }
        request.answer(200);
        bed.settled().await;
        bed.close().await;
    }

    /// While a key is replaced, nodes have different ones. Those without the new one claimed what they could not sign, and used up its
    /// attempts.
    async fn a_node_without_the_key_leaves_events_to_those_who_have_it(bed: Bed) {
        let mut bed = bed;
        let secret = Secret::generate_hmac().unwrap();
        let key = Keyring::derived("another root token");
        bed.subscribe(Push { secrets: vec![sealed(&key, "1", &secret)], ..bed.push() }).await;
        let open = Policy { push: Some(bed.push()), ..Policy::default() };
        bed.tram.put_subscription("open", &["t"], open, Start::Now).await.unwrap();
        bed.emit(&["a"]).await;
        let sent = bed.receiver.next().await;
        assert_eq!(sent.json()["subscription"], "open", "this node can do that");
        sent.answer(200);
        // It looks at all subscriptions once more.
        bed.clock.advance(SECOND * 2);
        bed.emit(&["b"]).await;
        let sent = bed.receiver.next().await;
        assert_eq!(sent.json()["subscription"], "open");
        sent.answer(200);
        assert_eq!((bed.counts().await.ready, bed.health().await.failed), (2, 0));
        let heir = Node::start(&bed.process(), &key);
        let request = bed.receiver.next().await;
        assert_eq!((request.json()["subscription"].as_str(), request.payloads()), (Some("s"), vec!["a".into(), "b".into()]));
        assert_eq!(request.json()["events"][0]["attempt"], 1);
        request.answer(200);
        bed.settled().await;
        heir.stop().await;
        bed.close().await;
    }
}
