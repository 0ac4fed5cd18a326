//! Tokens: kept by name, never with their secret.

use crate::bed::*;
use tramline::{Scope, Token};

conformance![
    a_token_is_kept_as_it_was_given,
    a_sealed_secret_is_kept_with_its_token,
    a_secret_is_sealed_again_only_if_it_is_still_as_it_was,
    tokens_are_listed_by_name,
    a_name_is_given_once,
    a_deleted_token_is_gone_and_its_name_free,
    the_last_use_of_a_token_only_moves_forward,
    impossible_tokens_are_refused,
];

fn token(name: &str) -> Token {
    Token {
        name: name.into(),
        hash: [7; 32],
        scopes: vec![Scope::Publish, Scope::Consume],
        topics: Some(vec!["acme/**".parse().unwrap()]),
        subscriptions: None,
        created_at: Time(0),
        expires_at: Some(Time(5)),
        used_at: None,
        sealed: None,
    }
}

async fn put(bed: &Bed, token: Token) -> Result<Token> {
    bed.store.put_token(PutToken { token, now: bed.now() }).await
}

async fn a_token_is_kept_as_it_was_given(bed: Bed) {
    let kept = put(&bed, token("ci")).await.unwrap();
    assert_eq!(kept, Token { created_at: bed.time(), ..token("ci") });
    assert_eq!(bed.twin().await.store.tokens().await.unwrap(), [kept]);
}

async fn a_sealed_secret_is_kept_with_its_token(bed: Bed) {
    let sealed = Token { sealed: Some("s1.key.text".into()), ..token("shown") };
    let kept = put(&bed, sealed.clone()).await.unwrap();
    assert_eq!(kept.sealed, sealed.sealed);
    put(&bed, token("hidden")).await.unwrap();
    let listed = bed.twin().await.store.tokens().await.unwrap();
    assert_eq!([&listed[0].sealed, &listed[1].sealed], [&None, &sealed.sealed]);
}

async fn a_secret_is_sealed_again_only_if_it_is_still_as_it_was(bed: Bed) {
    put(&bed, Token { sealed: Some("s1.old.text".into()), ..token("shown") }).await.unwrap();
    let seal = |name: &str, from: &str, to: &str| {
        let seal = SealToken { name: name.into(), from: from.into(), to: to.into() };
        let store = bed.store.clone();
        async move { store.seal_token(seal).await.unwrap() }
    };
    assert!(seal("shown", "s1.old.text", "s1.new.text").await);
    assert!(!seal("shown", "s1.old.text", "s1.other.text").await, "another node was faster");
    assert!(!seal("gone", "s1.old.text", "s1.other.text").await);
    let kept = bed.twin().await.store.tokens().await.unwrap().remove(0);
    let expected = Token { sealed: Some("s1.new.text".into()), created_at: bed.time(), ..token("shown") };
    assert_eq!(kept, expected, "nothing else has changed");
}

async fn tokens_are_listed_by_name(bed: Bed) {
    for name in ["c", "a", "b"] {
        put(&bed, token(name)).await.unwrap();
    }
    let names: Vec<String> = bed.store.tokens().await.unwrap().into_iter().map(|token| token.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

async fn a_name_is_given_once(bed: Bed) {
    put(&bed, token("ci")).await.unwrap();
    let again = put(&bed, Token { hash: [8; 32], ..token("ci") }).await;
    assert_eq!(again.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(bed.store.tokens().await.unwrap()[0].hash, [7; 32]);
}

async fn a_deleted_token_is_gone_and_its_name_free(bed: Bed) {
    put(&bed, token("ci")).await.unwrap();
    bed.store.delete_token("ci").await.unwrap();
    assert_eq!(bed.store.tokens().await.unwrap(), []);
    assert_eq!(bed.store.delete_token("ci").await.unwrap_err().kind(), Kind::NotFound);
    put(&bed, token("ci")).await.unwrap();
}

async fn the_last_use_of_a_token_only_moves_forward(bed: Bed) {
    put(&bed, token("ci")).await.unwrap();
    for at in [10, 20, 15] {
        bed.store.touch_tokens(vec![("ci".into(), Time(at)), ("gone".into(), Time(1))]).await.unwrap();
    }
    assert_eq!(bed.store.tokens().await.unwrap()[0].used_at, Some(Time(20)));
}

async fn impossible_tokens_are_refused(bed: Bed) {
    let bad = [
        token(""),
        token("two words"),
        token(&"x".repeat(101)),
        Token { scopes: vec![], ..token("ci") },
        Token { topics: Some(vec!["a".parse().unwrap(); 101]), ..token("ci") },
    ];
    for token in bad {
        assert_eq!(put(&bed, token).await.unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(bed.store.tokens().await.unwrap(), []);
}
