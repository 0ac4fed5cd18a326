//! A proxy that an operator has configured. The environment is never asked: a variable that somebody set for another program would
//! send events, and the decision where they may go, to another machine.

use crate::error::{Error, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderValue, Uri};
use std::fmt;
use std::str::FromStr;
use url::Url;

/// `http://proxy:port`, perhaps with user and password. Requests to https go through a tunnel (CONNECT), those to http are sent to
/// it with the whole address.
///
/// The proxy looks names up, so that the guard here sees only addresses that are written as such; what names lead to is for the
/// proxy's own rules. The proxy itself may be anywhere.
#[derive(Clone)]
pub struct Proxy {
    pub(super) uri: Uri,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) authorization: Option<HeaderValue>,
}

impl FromStr for Proxy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Proxy> {
        // The text is not repeated: there may be a password in it.
        let wrong = || {
            Error::invalid(
                "this is not the address of a proxy",
                "write it like http://proxy.example.org:3128",
            )
        };
        let url: Url = text.parse().map_err(|_| wrong())?;
        let plain =
            url.scheme() == "http" && url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let host = url.host_str().filter(|host| plain && !host.is_empty()).ok_or_else(wrong)?;
        let port = url.port_or_known_default().ok_or_else(wrong)?;
        Ok(Proxy {
            uri: format!("http://{host}:{port}/").parse().map_err(|_| wrong())?,
            host: host.to_owned(),
            port,
            authorization: authorization(&url).map_err(|()| wrong())?,
        })
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.uri)
    }
}

/// Basic, of the user and the password in the URL.
fn authorization(url: &Url) -> Result<Option<HeaderValue>, ()> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let pair = [url.username(), url.password().unwrap_or_default()].map(decoded);
    let mut value: HeaderValue =
        format!("Basic {}", BASE64_STANDARD.encode(pair.join(&b':'))).parse().map_err(|_| ())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// `%40` and the like as the bytes that they stand for.
fn decoded(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_a_host_a_port_and_perhaps_a_password() {
        let proxy: Proxy = "http://me:p%40ss@proxy.example.org:3128".parse().unwrap();
        assert_eq!((&*proxy.host, proxy.port), ("proxy.example.org", 3128));
        assert_eq!(proxy.authorization.as_ref().unwrap(), "Basic bWU6cEBzcw==");
        assert_eq!(format!("{proxy:?}"), "Proxy(http://proxy.example.org:3128/)");
        assert_eq!("http://[::1]".parse::<Proxy>().unwrap().port, 80);
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_its_password() {
        for text in [
            "",
            "proxy:3128",
            "https://u:secret@proxy",
            "socks5://proxy",
            "http://u:secret@proxy/path",
            "http://proxy/?q",
        ] {
            let error = text.parse::<Proxy>().expect_err(text).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
