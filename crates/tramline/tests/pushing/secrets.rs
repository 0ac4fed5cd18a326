//! Requests that are signed, and who they say they are from.

use crate::bed::*;
use crate::on_every_store;
use http::{HeaderMap, HeaderName, HeaderValue};
use tramline::engine::push::{secret_purpose, user_purpose};
use tramline::push::{Keyring, Secret, Verifier};
use tramline::{Push, SealedSecret, SecretKind, Time};

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

    async fn what_cannot_be_signed_is_not_sent(bed: Bed) {
        let mut bed = bed;
        let secret = Secret::generate_hmac().unwrap();
        let secrets = vec![sealed(&Keyring::derived("another root token"), "1", &secret)];
        bed.subscribe(Push { secrets, ..bed.push() }).await;
        bed.emit(&["a"]).await;
        until("it failed", async || bed.health().await.failed == 1).await;
        let attempt = bed.tram.attempts("s", i64::MAX, 1).await.unwrap().pop().unwrap().attempt;
        assert!(attempt.excerpt.contains("key"), "{}", attempt.excerpt);
        assert!(bed.receiver.is_quiet());
        bed.close().await;
    }
}
