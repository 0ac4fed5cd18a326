//! Every route, for every role, on its own, a foreign and a missing name: nothing is allowed that should not be, and nothing leaks.

use super::bed::{Bed, ROOT, Reply};
use super::openapi::methods;
use axum::http::Method;
use serde_json::{Value, json};
use std::collections::HashMap;
use utoipa::openapi::path::{Operation, PathItem};

const ROLES: &[&str] = &["publish", "consume", "manage", "admin"];
/// The word that a tenant must never see.
const FOREIGN: &str = "rival";

/// Two tenants, each with a topic, a subscription, a schedule and an event; and subscriptions that consume the second's topic under a name of
/// the first.
struct Tenants {
    bed: Bed,
    /// The event of a topic.
    events: HashMap<&'static str, String>,
    /// The tally and the counter of a topic.
    tallies: HashMap<&'static str, [String; 2]>,
    /// A rule by pattern, by the topic of its tenant.
    rules: HashMap<&'static str, String>,
    /// The signing secret of a push subscription, by the topic.
    secrets: HashMap<&'static str, String>,
}

impl Tenants {
    async fn new() -> Tenants {
        let bed = Bed::guarded().await;
        let (mut events, mut tallies, mut secrets) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut rules = HashMap::new();
        for name in ["acme/a", "rival/a"] {
            let path = name.replace('/', "%2F");
            bed.put(&format!("/v1/subscriptions/{path}"), json!({"topics": [name]})).await.good();
            let (path, event) = (format!("/v1/topics/{path}/events"), json!({"payload": 5, "key": "k"}));
            let emitted = bed.post(&path, event).await.good();
            let id = emitted["events"][0]["id"].as_str().unwrap().to_owned();
            events.insert(name, id);
            let path = format!("/v1/schedules/{}", name.replace('/', "%2F"));
            bed.put(&path, json!({"cron": "@daily", "topic": name})).await.good();
            let tally = open(&bed, json!({"topic": name, "user_key": name})).await;
            let counter = open(&bed, json!({"topic": name, "estimated": true})).await;
            tallies.insert(name, [tally, counter]);
            let path = format!("/v1/subscriptions/{}", pushed(name).replace('/', "%2F"));
            let push = json!({"topics": [name], "kind": "push", "callback": "https://receiver.example/"});
            bed.put(&path, push).await.good();
            let secret = bed.post(&format!("{path}/secrets"), json!({})).await.good();
            secrets.insert(name, secret["id"].as_str().unwrap().to_owned());
        }
        bed.put("/v1/subscriptions/acme%2Fspy", json!({"topics": ["rival/a"]})).await.good();
        // Also of one of its topics, the first tenant must not learn that this one exists.
        bed.put("/v1/subscriptions/acme%2Frivals", json!({"topics": ["acme/a", "rival/a"]})).await.good();
        let claimed = bed.post("/v1/subscriptions/acme%2Frivals/claim", json!({})).await.good();
        let result = json!({"id": claimed["events"][0]["id"], "lease": claimed["events"][0]["lease"], "outcome": "retry"});
        bed.post("/v1/subscriptions/acme%2Frivals/settle", json!({"results": [result]})).await.good();
        bed.post("/v1/subscriptions/rival%2Fa/claim", json!({"worker": "rival-worker"})).await.good();
        // They stop nothing: what the tests do has to go on.
        for name in ["acme/a", "rival/a"] {
            let pattern = name.replace("/a", "/none/**");
            let rule = bed.post("/v1/tokens", owner(name)).await.good()["token"].as_str().unwrap().to_owned();
            let body = json!({"pattern": pattern, "kind": "pause"}).to_string();
            let rule = bed.call(Method::POST, "/v1/rules", Some(&rule), &body).await.good();
            rules.insert(name, rule["id"].as_str().unwrap().to_owned());
        }
        Tenants { bed, events, tallies, rules, secrets }
    }

    /// A token for one role, within the first tenant.
    async fn token(&self, role: &str) -> String {
        let token =
            json!({"name": role, "scopes": [role], "topics": ["acme/**"], "subscriptions": ["acme/**"]});
        self.bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned()
    }

    /// A call of an operation on a name; an event is named by its topic.
    async fn call(&self, operation: &Route, name: &str, token: Option<&str>) -> Reply {
        let id = self.events.get(name).map_or("999999", |id| id);
        let counts = usize::from(operation.path.ends_with("/count"));
        let tally = self.tallies.get(name).map_or("999999", |both| &both[counts]);
        let secret = self.secrets.get(name).map_or("none", |id| id);
        let named =
            if operation.is_about_push() { pushed(name) } else { name.to_owned() }.replace('/', "%2F");
        let url = operation.path.replace("{topic}", &named).replace("{name}", &named).replace("{id}", id);
        let rule = self.rules.get(name).map_or("999999", |id| id);
        let url = url.replace("{tally}", tally).replace("{secret}", secret).replace("{rule}", rule);
        let of_key = ["/head", "/chain"].iter().any(|end| operation.path.ends_with(end));
        let url = if of_key { format!("{url}?key=k") } else { url };
        self.bed.call(operation.method.clone(), &url, token, &body(operation, name).to_string()).await
    }
}

/// A token that manages all of a tenant's.
fn owner(name: &str) -> Value {
    let all = [name.replace("/a", "/**")];
    json!({"name": name.replace('/', "-"), "scopes": ["manage"], "topics": all, "subscriptions": all})
}

/// The push subscription beside one that workers claim from.
fn pushed(name: &str) -> String {
    name.replace("/a", "/pushed-a")
}

async fn open(bed: &Bed, tally: Value) -> String {
    bed.post("/v1/tallies", tally).await.good()["tally"].as_str().unwrap().to_owned()
}

/// An operation of the description.
#[derive(Clone)]
struct Route {
    method: Method,
    path: String,
    /// Any of these is enough; none: open to all.
    scopes: Vec<String>,
}

impl Route {
    fn has_name(&self) -> bool {
        self.path.contains('{') && !self.is_about_tokens()
    }

    fn is_about_push(&self) -> bool {
        ["/enable", "/disable", "/secrets", "/attempts"].iter().any(|part| self.path.contains(part))
    }

    fn is_about_tokens(&self) -> bool {
        self.path.starts_with("/v1/tokens")
    }
}

fn routes(bed: &Bed) -> Vec<Route> {
    let of = |path: &String, item: &PathItem| -> Vec<Route> {
        let route = |method: Method| {
            let operation = operation(item, &method);
            let scopes = operation.security.iter().flatten().flat_map(scopes_of).collect();
            Route { method, path: path.clone(), scopes }
        };
        methods(item).into_iter().map(route).collect()
    };
    bed.api.paths.paths.iter().flat_map(|(path, item)| of(path, item)).collect()
}

fn operation<'a>(item: &'a PathItem, method: &Method) -> &'a Operation {
    let operation = match *method {
        Method::GET => &item.get,
        Method::PUT => &item.put,
        Method::POST => &item.post,
        _ => &item.delete,
    };
    operation.as_ref().unwrap()
}

fn scopes_of(requirement: &utoipa::openapi::security::SecurityRequirement) -> Vec<String> {
    let value = serde_json::to_value(requirement).unwrap();
    let scopes = value["token"].as_array().unwrap();
    scopes.iter().map(|scope| scope.as_str().unwrap().to_owned()).collect()
}

/// A body with which the operation would succeed.
fn body(route: &Route, name: &str) -> Value {
    body_for(&route.path, name)
}

pub(super) fn body_for(path: &str, name: &str) -> Value {
    match path.rsplit('/').next().unwrap() {
        "events" => json!({"payload": 1}),
        "{name}" if path.contains("schedules") => json!({"every_ms": 60_000, "topic": name}),
        "{name}" => json!({"topics": [name]}),
        "settle" => json!({"results": []}),
        "extend" | "release" if path.contains("parked") => json!({"all": true}),
        "extend" | "release" => json!({"leases": []}),
        "replay" if !path.contains("dead") => json!({"since": "2026-01-01T00:00:00Z"}),
        "replay" | "drop" => json!({"all": true}),
        "resend" => json!({"ids": []}),
        "tallies" => json!({"topic": name}),
        "add" => json!({"count": 1}),
        "ack" if !path.contains('{') => json!({"acks": []}),
        "ack" | "fail" => json!({"items": []}),
        "count" => json!({"by": 1}),
        "rules" => json!({"pattern": name.replace("/a", "/**"), "kind": "pause"}),
        "tokens" => json!({"name": "new", "scopes": ["admin"]}),
        _ => json!({}),
    }
}

#[tokio::test]
async fn without_a_token_or_with_a_wrong_one_nothing_answers() {
    let tenants = Tenants::new().await;
    for route in routes(&tenants.bed) {
        for token in [None, Some("tl_wrong"), Some("")] {
            let reply = tenants.call(&route, "acme/a", token).await;
            if route.scopes.is_empty() {
                assert!(reply.status.is_success(), "{} {}", route.method, route.path);
            } else {
                assert_eq!(reply.headers["www-authenticate"], "Bearer realm=\"tramline\"");
                reply.problem(401);
            }
        }
    }
}

#[tokio::test]
async fn every_role_may_do_what_its_scope_says_and_nothing_else() {
    let all = routes(&Bed::open().await);
    for route in all.iter().filter(|route| !route.scopes.is_empty()) {
        for role in ROLES {
            let tenants = Tenants::new().await;
            let token = tenants.token(role).await;
            let allowed = route.scopes.iter().any(|scope| scope == role) || *role == "admin";
            let reply = tenants.call(route, "acme/a", Some(&token)).await;
            let what = format!("{} {} as {role}: {} {}", route.method, route.path, reply.status, reply.text);
            if route.is_about_tokens() {
                // Within a pattern nobody may create tokens: it could be one beyond it.
                assert_eq!(reply.status, 403, "{what}");
            } else if !allowed {
                assert_eq!(reply.status, 403, "{what}");
            } else if route.method == Method::DELETE && route.path.starts_with("/v1/topics") {
                assert_eq!(reply.status, 409, "{what}");
                assert!(!reply.text.contains("acme/"), "{what}");
            } else {
                assert!(reply.status.is_success(), "{what}");
            }
            assert!(!reply.text.contains(FOREIGN), "{what}");
        }
    }
}

#[tokio::test]
async fn a_foreign_name_answers_the_same_whether_it_exists_or_not() {
    let tenants = Tenants::new().await;
    for role in ROLES {
        let token = tenants.token(role).await;
        for route in routes(&tenants.bed).iter().filter(|route| route.has_name()) {
            let there = tenants.call(route, "rival/a", Some(&token)).await;
            let missing = tenants.call(route, "rival/none", Some(&token)).await;
            let what = format!("{} {} as {role}: {}", route.method, route.path, there.text);
            assert_eq!((there.status, &there.text), (missing.status, &missing.text), "{what}");
            assert!(there.status == 403 || there.status == 404, "{what}");
        }
    }
    let events = tenants.bed.get("/v1/topics/rival%2Fa/events").await.good();
    assert_eq!(events["items"].as_array().unwrap().len(), 1, "nothing was done to it either");
}

#[tokio::test]
async fn a_subscription_of_foreign_topics_is_foreign_whatever_its_name() {
    let tenants = Tenants::new().await;
    let token = tenants.token("admin").await;
    let all = routes(&tenants.bed);
    for route in all.iter().filter(|route| route.path.starts_with("/v1/subscriptions/{name}")) {
        let reply = tenants.call(route, "acme/spy", Some(&token)).await;
        assert_eq!(reply.status, 403, "{} {}", route.method, route.path);
    }
    let steal = json!({"topics": ["acme/a", "rival/a"]}).to_string();
    let reply = tenants.bed.call(Method::PUT, "/v1/subscriptions/acme%2Fnew", Some(&token), &steal).await;
    reply.problem(403);
}

/// Whether a token may stop all that a pattern means is compared with every name there could be: nothing may be stopped that the token
/// could not stop by name.
#[tokio::test]
async fn a_token_stops_by_pattern_what_it_could_stop_by_name_and_nothing_else() {
    let patterns = [
        "**",
        "*",
        "*/*",
        "*/**",
        "acme",
        "acme/*",
        "acme/**",
        "acme/a",
        "acme/*/b",
        "*/a",
        "rival/*",
        "acme/a/**",
    ];
    let segments = ["acme", "rival", "a", "b", "x"];
    let mut names: Vec<String> = segments.iter().map(ToString::to_string).collect();
    for first in segments {
        for second in segments {
            names.push(format!("{first}/{second}"));
            names.extend(segments.iter().map(|third| format!("{first}/{second}/{third}")));
        }
    }
    let matches = |pattern: &str, name: &str| pattern.parse::<tramline::Pattern>().unwrap().matches(name);
    let bed = Bed::guarded().await;
    for (number, own) in patterns.iter().enumerate() {
        let token = json!({"name": format!("t{number}"), "scopes": ["manage"], "subscriptions": [own]});
        let token = bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned();
        for wanted in patterns {
            let body = json!({"pattern": wanted, "kind": "pause"}).to_string();
            let reply = bed.call(Method::POST, "/v1/rules", Some(&token), &body).await;
            let allowed = names.iter().all(|name| !matches(wanted, name) || matches(own, name));
            assert_eq!(reply.status, if allowed { 201 } else { 403 }, "{own} stops {wanted}: {}", reply.text);
            let body = json!({"pattern": wanted, "kind": "block"}).to_string();
            bed.call(Method::POST, "/v1/rules", Some(&token), &body).await.problem(403);
        }
        let listed = bed.call(Method::GET, "/v1/rules?limit=1000", Some(&token), "").await.good();
        for rule in listed["items"].as_array().unwrap() {
            let pattern = rule["pattern"].as_str().unwrap();
            assert!(
                names.iter().all(|name| !matches(pattern, name) || matches(own, name)),
                "{own} sees {pattern}"
            );
        }
    }
}

/// A subscription may have a tenant's name and consume what is not the tenant's.
#[tokio::test]
async fn a_rule_by_pattern_leaves_subscriptions_of_foreign_topics_alone() {
    let tenants = Tenants::new().await;
    let token = tenants.token("manage").await;
    let body = json!({"pattern": "acme/**", "kind": "pause"}).to_string();
    let rule = tenants.bed.call(Method::POST, "/v1/rules", Some(&token), &body).await.good();
    let rules = async |name: &str| {
        let path = format!("/v1/subscriptions/{}", name.replace('/', "%2F"));
        tenants.bed.get(&path).await.good()["rules"].as_array().unwrap().len()
    };
    assert_eq!((rules("acme/a").await, rules("acme/spy").await, rules("acme/rivals").await), (1, 0, 0));
    let wide = tenants.bed.post("/v1/rules", json!({"pattern": "acme/**", "kind": "pause"})).await.good();
    assert_ne!(rule["id"], wide["id"]);
    assert_eq!((rules("acme/a").await, rules("acme/spy").await), (2, 1));
    let path = format!("/v1/rules/{}", wide["id"].as_str().unwrap());
    tenants.bed.call(Method::DELETE, &path, Some(&token), "").await.problem(404);
    let listed = tenants.bed.call(Method::GET, "/v1/rules", Some(&token), "").await.good();
    assert!(listed["items"].as_array().unwrap().iter().all(|one| one["id"] != wide["id"]));
}

#[tokio::test]
async fn a_token_is_shown_once_works_in_both_ways_and_ends() {
    let bed = Bed::guarded().await;
    let created = bed.post("/v1/tokens", json!({"name": "ci", "scopes": ["publish"]})).await;
    assert_eq!(created.status, 201);
    let secret = created.json()["token"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("tl_") && secret.len() == 46, "{secret}");
    let emit = |authorization: String| {
        let request = axum::http::Request::post("/v1/topics/t/events").header("authorization", authorization);
        bed.send(request.body(axum::body::Body::from("{\"payload\":1}")).unwrap())
    };
    use base64::Engine;
    let basic = base64::prelude::BASE64_STANDARD.encode(format!("{secret}:"));
    emit(format!("Bearer {secret}")).await.good();
    emit(format!("Basic {basic}")).await.good();
    let listed = bed.get("/v1/tokens").await;
    assert!(!listed.text.contains(&secret[3..]), "the secret is not listed");
    assert!(listed.json()["items"][0]["used_at"].is_string());
    bed.post("/v1/tokens", json!({"name": "ci", "scopes": ["publish"]})).await.problem(409);
    bed.delete("/v1/tokens/ci").await.good();
    emit(format!("Bearer {secret}")).await.problem(401);
    let old = json!({"name": "old", "scopes": ["publish"], "expires_at": "2001-01-01T00:00:00Z"});
    let old = bed.post("/v1/tokens", old).await.good()["token"].as_str().unwrap().to_owned();
    emit(format!("Bearer {old}")).await.problem(401);
    emit(format!("Bearer {ROOT}")).await.good();
}

#[tokio::test]
async fn with_the_first_token_everybody_needs_one() {
    let bed = Bed::open().await;
    let token = bed.post("/v1/tokens", json!({"name": "first", "scopes": ["admin"]})).await.good();
    bed.get("/v1/topics").await.problem(401);
    bed.call(Method::GET, "/v1/topics", token["token"].as_str(), "").await.good();
}

/// Or everybody would be locked out for good.
#[tokio::test]
async fn the_first_token_has_to_open_all_doors() {
    let bed = Bed::open().await;
    for weak in [
        json!({"name": "x", "scopes": ["publish"]}),
        json!({"name": "x", "scopes": ["admin"], "topics": ["acme/*"]}),
        json!({"name": "x", "scopes": ["admin"], "expires_at": "2999-01-01T00:00:00Z"}),
    ] {
        bed.post("/v1/tokens", weak).await.problem(422);
    }
    bed.get("/v1/topics").await.good();
}

#[tokio::test]
async fn impossible_tokens_are_refused() {
    let bed = Bed::guarded().await;
    for bad in [
        json!({"name": "x", "scopes": []}),
        json!({"name": "x", "scopes": ["root"]}),
        json!({"name": "", "scopes": ["admin"]}),
        json!({"name": "x", "scopes": ["admin"], "topics": ["a*"]}),
        json!({"name": "x", "scopes": ["admin"], "expires_at": 5}),
    ] {
        bed.post("/v1/tokens", bad).await.problem(422);
    }
}
