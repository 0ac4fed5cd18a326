//! Who may call Routemaster's API, and that it can be switched off.

use super::bus::{Bus, CALLBACK, event};
use crate::compat::routemaster;
use crate::config::{Config, Switch};
use crate::http::tests::bed::{Bed, ROOT, Reply};
use serde_json::{Value, json};

const ROLES: &[&str] = &["publish", "consume", "manage", "admin"];
const PUBLISH: &[&str] = &["publish", "admin"];
const CONSUME: &[&str] = &["consume", "admin"];
const LOOK: &[&str] = &["consume", "manage", "admin"];
const NOBODY: &[&str] = &[];

/// Every call, which scopes may make it with a token that is limited to names, and whether the root and clients may.
const RIGHTS: &[(&str, &str, &[&str], bool, bool)] = &[
    ("GET", "/pulse", ROLES, true, true),
    ("GET", "/pulse/scaling", ROLES, true, true),
    ("GET", "/api_tokens", NOBODY, true, false),
    ("POST", "/api_tokens", NOBODY, true, false),
    ("DELETE", "/api_tokens/{token}", NOBODY, true, false),
    ("GET", "/topics", ROLES, true, true),
    ("POST", "/topics/{name}", PUBLISH, false, true),
    ("DELETE", "/topics/{name}", PUBLISH, true, true),
    ("POST", "/subscription", CONSUME, false, true),
    ("POST", "/subscriber", CONSUME, false, true),
    ("GET", "/subscriptions", LOOK, true, true),
    ("GET", "/subscribers", LOOK, true, true),
    ("DELETE", "/subscriber", CONSUME, false, true),
    ("DELETE", "/subscriber/topics/{name}", CONSUME, false, true),
];

/// A call that would succeed for a client that owns `own` and subscribes to it.
async fn call(bus: &Bus, method: &str, path: &str, token: &str, topic: &str) -> Reply {
    let url = path.replace("{name}", topic).replace("{token}", "nobodys");
    let body = match (method, path) {
        ("POST", "/api_tokens") => json!({"name": "new"}),
        ("POST", "/topics/{name}") => event(1),
        ("POST", _) => json!({"topics": [topic], "callback": CALLBACK}),
        _ => Value::Null,
    };
    bus.call(method, &url, token, body).await
}

/// A client `me` that owns `own` and subscribes to it, and one `you` with `yours`. Each has a token of Routemaster's.
async fn two_clients() -> Bus {
    let bus = Bus(Bed::guarded().await);
    for (name, topic) in [("me", "own"), ("you", "yours")] {
        bus.good("POST", "/api_tokens", ROOT, json!({"name": name, "token": name})).await;
        bus.good("POST", &format!("/topics/{topic}"), name, event(1)).await;
        let wanted = json!({"topics": [topic], "callback": CALLBACK, "uuid": format!("uuid-of-{name}")});
        bus.good("POST", "/subscription", name, wanted).await;
    }
    bus
}

/// A token of one scope for the client `me`, limited to what is its own.
async fn scoped(bus: &Bus, role: &str) -> String {
    bus.0.app.tram.store().delete_token("me").await.unwrap();
    let token = json!({"name": "me", "scopes": [role], "topics": ["own"], "subscriptions": ["me"]});
    bus.0.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned()
}

#[test]
fn it_is_known_of_every_call_who_may_make_it() {
    let [guarded, open] = routemaster::list();
    let known: Vec<_> = RIGHTS.iter().map(|(method, path, ..)| (method.parse().unwrap(), *path)).collect();
    assert_eq!(guarded, known);
    let open: Vec<&str> = open.iter().map(|(_, path)| *path).collect();
    assert_eq!(open, ["/health", "/health/ping"]);
}

#[tokio::test]
async fn without_a_token_or_with_a_wrong_one_nothing_answers() {
    let bus = two_clients().await;
    for (method, path, ..) in RIGHTS {
        for token in ["wrong", "", "me "] {
            let reply = call(&bus, method, path, token, "own").await;
            assert_eq!(reply.headers["www-authenticate"], "Basic", "{method} {path}");
            reply.refused(401, "");
        }
    }
}

#[tokio::test]
async fn the_root_and_clients_may_do_what_is_theirs() {
    for (method, path, _, root, client) in RIGHTS {
        for (token, may) in [(ROOT, root), ("me", client)] {
            let bus = two_clients().await;
            let reply = call(&bus, method, path, token, "own").await;
            let what = format!("{method} {path} as {token}: {} {}", reply.status, reply.text);
            match may {
                true => assert!(reply.status.is_success(), "{what}"),
                false => assert_eq!(reply.status, 401, "{what}"),
            }
        }
    }
}

#[tokio::test]
async fn every_scope_may_do_what_it_says_and_nothing_else() {
    for (method, path, roles, ..) in RIGHTS {
        for role in ROLES {
            let bus = two_clients().await;
            let token = scoped(&bus, role).await;
            let reply = call(&bus, method, path, &token, "own").await;
            let what = format!("{method} {path} as {role}: {} {}", reply.status, reply.text);
            match roles.contains(role) {
                true => assert!(reply.status.is_success(), "{what}"),
                false => assert!(reply.status == 403 || reply.status == 401, "{what}"),
            }
            assert!(!reply.text.contains("you"), "{what}");
        }
    }
}

#[tokio::test]
async fn beyond_its_patterns_a_token_sees_and_does_nothing() {
    let bus = two_clients().await;
    let token = scoped(&bus, "admin").await;
    for (method, path, ..) in
        RIGHTS.iter().filter(|(method, path, ..)| path.contains("{name}") || *method == "POST")
    {
        let reply = call(&bus, method, path, &token, "yours").await;
        let what = format!("{method} {path}: {} {}", reply.status, reply.text);
        assert!(matches!(reply.status.as_u16(), 401 | 403 | 404), "{what}");
    }
    assert_eq!(bus.get("/topics", &token).await.as_array().unwrap().len(), 1);
    assert_eq!(bus.get("/subscribers", &token).await.as_array().unwrap().len(), 1);
    assert_eq!(bus.get("/topics", "you").await.as_array().unwrap().len(), 2, "nothing was done to it either");
}

#[tokio::test]
async fn nobody_sees_the_secrets_of_others() {
    let bus = two_clients().await;
    for (method, path, ..) in RIGHTS.iter().filter(|(method, ..)| *method == "GET") {
        let reply = call(&bus, method, path, "you", "own").await;
        assert!(!reply.text.contains("uuid-of-me"), "{path}: {}", reply.text);
    }
}

#[tokio::test]
async fn on_loopback_without_tokens_the_user_name_says_who_the_client_is() {
    let bus = Bus::local().await;
    bus.good("POST", "/topics/widgets", "shop", event(1)).await;
    bus.call("POST", "/topics/widgets", "web", event(1)).await.refused(403, "topic claimed");
    bus.good("POST", "/topics/gadgets", "", event(1)).await;
    let topics = bus.get("/topics", "").await;
    assert_eq!((&topics[0]["publisher"], &topics[1]["publisher"]), (&json!("anonymous"), &json!("shop")));
    bus.good("POST", "/subscription", "web", json!({"topics": ["widgets"], "callback": CALLBACK})).await;
    assert_eq!(bus.get("/subscribers", "").await[0]["subscriber"], "web");
    assert_eq!(bus.call("GET", "/topics", "Not Plain", Value::Null).await.status, 401);
    assert_eq!(
        bus.call("DELETE", "/topics/widgets", "", Value::Null).await.status,
        204,
        "anybody is the root too"
    );
    let secret = json!({"topics": ["widgets"], "callback": CALLBACK, "uuid": "u"});
    bus.call("POST", "/subscription", "web", secret)
        .await
        .refused(400, "there is no key to keep secrets with");
}

#[tokio::test]
async fn switched_off_it_does_not_exist() {
    let off = Bus(Bed::with(Config { routemaster: Switch::Off, ..Config::defaults().unwrap() }).await);
    let [guarded, open] = routemaster::list();
    for (method, path) in guarded.into_iter().chain(open) {
        let reply = call(&off, method.as_str(), path, "", "own").await;
        assert_eq!(reply.status, 404, "{path}");
    }
}
