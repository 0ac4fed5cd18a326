//! URLs as they may be shown and logged: without what opens something.

/// Parameters whose names have one of these in them are secrets.
const SECRETS: [&str; 5] = ["password", "passwd", "pwd", "secret", "token"];

/// A URL with its secrets replaced; what is no URL stays as it is.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let place = match place.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", without_secret(scheme, user)),
        None => place.to_owned(),
    };
    match query {
        Some(query) => format!("{scheme}://{place}?{}", masked(query)),
        None => format!("{scheme}://{place}"),
    }
}

fn without_secret(scheme: &str, user: &str) -> String {
    match user.split_once(':') {
        Some((user, _)) => format!("{user}:***"),
        // Whoever is alone there is a token.
        None if ["nats", "tls"].contains(&scheme) => "***".to_owned(),
        None => user.to_owned(),
    }
}

fn masked(query: &str) -> String {
    let parameter = |text: &str| match text.split_once('=') {
        Some((name, _)) if SECRETS.iter().any(|secret| name.to_ascii_lowercase().contains(secret)) => {
            format!("{name}=***")
        }
        _ => text.to_owned(),
    };
    query.split('&').map(parameter).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_opens_something_is_replaced() {
        for (url, shown) in [
            ("postgres://u:p@h:1/d?x=a@b", "postgres://u:***@h:1/d?x=a@b"),
            ("postgres://u@h/d?password=p&sslmode=require", "postgres://u@h/d?password=***&sslmode=require"),
            ("postgres:///d?user=u&SSLPassword=p", "postgres:///d?user=u&SSLPassword=***"),
            ("postgres://u:p/with/slashes@h/d", "postgres://u:***@h/d"),
            ("redis://:p@h", "redis://:***@h"),
            ("nats://t0ken@h:4222", "nats://***@h:4222"),
            ("http://u:p@proxy:3128", "http://u:***@proxy:3128"),
            ("sqlite://a.db", "sqlite://a.db"),
            ("127.0.0.1:7070", "127.0.0.1:7070"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
