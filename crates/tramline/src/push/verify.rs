//! The receiver's side of [`sign`](mod@super::sign): is this request what its sender says?

use super::sign::{self, Secret, decode, head};
use crate::error::{Error, Result};
use crate::model::time::Time;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderMap;
use ring::hmac;
use ring::signature::{ED25519, UnparsedPublicKey};
use std::fmt;
use std::time::Duration;

/// How far the clocks of sender and receiver may be apart, and how old a copied request may be.
const TOLERANCE: Duration = Duration::from_secs(300);
/// How many signatures of a request are looked at. One is normal, two while a secret is replaced.
const MOST: usize = 16;

/// What signatures are checked with: a shared secret, or the public half of a key pair.
pub struct Key(Kind);

enum Kind {
    Hmac(hmac::Key),
    Ed25519(UnparsedPublicKey<Vec<u8>>),
}

/// Checks requests.
///
/// ```
/// use tramline::push::{Secret, Verifier, sign};
/// use tramline::Time;
///
/// let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
/// let now = Time(1_614_265_330_000);
/// let headers = sign(&[secret], "msg_1", now, b"{}")?.into_iter().collect();
///
/// let verifier = Verifier::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?]);
/// assert!(verifier.verify(&headers, b"{}", now).is_ok());
/// assert!(verifier.verify(&headers, b"[]", now).is_err());
/// # Ok::<(), tramline::Error>(())
/// ```
#[derive(Debug)]
pub struct Verifier {
    keys: Vec<Key>,
    tolerance: Duration,
}

/// Why a request is not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// It is not signed at all, or only in part.
    #[error("the request has no header {0}")]
    Missing(&'static str),
    /// A header is there twice, or cannot be read.
    #[error("the header {0} cannot be understood")]
    Malformed(&'static str),
    /// It was signed too long ago: perhaps somebody sends a copy.
    #[error("the request was signed too long ago, or the clocks differ")]
    TooOld,
    /// It was signed in the future.
    #[error("the request was signed in the future: the clocks differ")]
    TooNew,
    /// No signature is one of the keys'.
    #[error("no signature fits: the request was changed, or signed with another secret")]
    NoMatch,
}

impl Key {
    /// Reads `whsec_..`, `whpk_..`, or `whsk_..` of which only the public half is kept.
    ///
    /// # Errors
    /// `Invalid` when it is none of them; the error does not show it.
    pub fn parse(text: &str) -> Result<Key> {
        let Some(base64) = text.strip_prefix(sign::PUBLIC) else {
            return match Secret::parse(text)? {
                Secret::Hmac(secret) => Ok(Key(Kind::Hmac(secret.key))),
                pair @ Secret::Ed25519(_) => Key::parse(&pair.public().unwrap_or_default()),
            };
        };
        let bytes = decode(base64)?;
        if bytes.len() != 32 {
            let message = format!("the public key has {} bytes", bytes.len());
            return Err(Error::invalid(message, "after whpk_ comes the base64 of 32 bytes"));
        }
        Ok(Key(Kind::Ed25519(UnparsedPublicKey::new(&ED25519, bytes))))
    }

    /// HMACs are compared in constant time; an Ed25519 signature is no secret.
    fn fits(&self, signature: &str, message: &[u8]) -> bool {
        let given = |base64: &str| BASE64_STANDARD.decode(base64).ok();
        match (&self.0, signature.split_once(',')) {
            (Kind::Hmac(key), Some(("v1", base64))) => {
                given(base64).is_some_and(|tag| hmac::verify(key, message, &tag).is_ok())
            }
            (Kind::Ed25519(key), Some(("v1a", base64))) => {
                given(base64).is_some_and(|signature| key.verify(message, &signature).is_ok())
            }
            _ => false,
        }
    }
}

impl std::str::FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Key> {
        Key::parse(text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Hmac(_) => "Key::Hmac(..)",
            Kind::Ed25519(_) => "Key::Ed25519(..)",
        })
    }
}

impl Verifier {
    /// Trusts what is signed with any of these keys within five minutes of now.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Verifier {
        Verifier { keys: keys.into_iter().collect(), tolerance: TOLERANCE }
    }

    /// Another time than five minutes, into the past and into the future.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Verifier {
        Verifier { tolerance, ..self }
    }

    /// Checks a request: its headers, and its body byte for byte as it was received.
    ///
    /// A request that passes may still be a copy of one that came before: keep the ids of the last minutes where that matters.
    ///
    /// # Errors
    /// [`Unverified`] says why it is not to be trusted.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Time) -> Result<(), Unverified> {
        let (id, seconds) = (only(headers, sign::ID)?, only(headers, sign::TIMESTAMP)?);
        let signatures = only(headers, sign::SIGNATURE)?;
        let at: i64 = seconds.parse().map_err(|_| Unverified::Malformed(sign::TIMESTAMP))?;
        self.check_time(Time(at.saturating_mul(1000)), now)?;
        let message = [head(id, seconds).as_bytes(), body].concat();
        let fits = |signature: &str| self.keys.iter().any(|key| key.fits(signature, &message));
        if signatures.split(' ').take(MOST).any(fits) { Ok(()) } else { Err(Unverified::NoMatch) }
    }

    fn check_time(&self, signed: Time, now: Time) -> Result<(), Unverified> {
        if signed < now.before(self.tolerance) {
            return Err(Unverified::TooOld);
        }
        if signed > now.after(self.tolerance) {
            return Err(Unverified::TooNew);
        }
        Ok(())
    }
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, Unverified> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(Unverified::Missing(name)),
        (Some(value), None) => value.to_str().map_err(|_| Unverified::Malformed(name)),
        (Some(_), Some(_)) => Err(Unverified::Malformed(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    const NOW: Time = Time(1_614_265_330_000);
    const BODY: &[u8] = b"{\"test\": 2432232314}";

    fn pair() -> Secret {
        Secret::generate_ed25519().unwrap()
    }

    fn shared() -> Secret {
        Secret::generate_hmac().unwrap()
    }

    fn key(secret: &Secret) -> Key {
        secret.public().unwrap_or_else(|| secret.reveal()).parse().unwrap()
    }

    fn signed(secrets: &[Secret]) -> HeaderMap {
        sign::sign(secrets, "msg_1", NOW, BODY).unwrap().into_iter().collect()
    }

    #[test]
    fn what_was_signed_is_trusted_by_who_has_the_key() {
        for secret in [shared(), pair()] {
            let verifier = Verifier::new([key(&secret)]);
            assert_eq!(verifier.verify(&signed(&[secret]), BODY, NOW), Ok(()));
        }
    }

    #[test]
    fn while_a_secret_is_replaced_either_is_enough() {
        let (old, new, other) = (shared(), pair(), shared());
        let (has_old, has_new) = (Verifier::new([key(&old)]), Verifier::new([key(&other), key(&new)]));
        let headers = signed(&[old, new]);
        assert_eq!(has_old.verify(&headers, BODY, NOW), Ok(()));
        assert_eq!(has_new.verify(&headers, BODY, NOW), Ok(()));
        assert_eq!(Verifier::new([key(&other)]).verify(&headers, BODY, NOW), Err(Unverified::NoMatch));
        assert_eq!(Verifier::new([]).verify(&headers, BODY, NOW), Err(Unverified::NoMatch));
    }

    #[test]
    fn a_request_is_trusted_for_five_minutes_either_way() {
        let secret = shared();
        let verifier = Verifier::new([key(&secret)]);
        let headers = signed(&[secret]);
        let at = |seconds: i64| verifier.verify(&headers, BODY, Time(NOW.0 + seconds * 1000));
        assert_eq!((at(300), at(-300)), (Ok(()), Ok(())));
        assert_eq!((at(301), at(-301)), (Err(Unverified::TooOld), Err(Unverified::TooNew)));
        let strict = verifier.tolerance(Duration::ZERO);
        assert_eq!(strict.verify(&headers, BODY, Time(NOW.0 + 1)), Err(Unverified::TooOld));
    }

    #[test]
    fn headers_that_are_missing_double_or_wrong_are_named() {
        let secret = shared();
        let (verifier, headers) = (Verifier::new([key(&secret)]), signed(&[secret]));
        for name in [sign::ID, sign::TIMESTAMP, sign::SIGNATURE] {
            let verdict = |change: fn(&mut HeaderMap, &'static str)| {
                let mut headers = headers.clone();
                change(&mut headers, name);
                verifier.verify(&headers, BODY, NOW)
            };
            assert_eq!(verdict(|it, name| drop(it.remove(name))), Err(Unverified::Missing(name)));
            let double = |it: &mut HeaderMap, name| assert!(it.append(name, it[name].clone()));
            assert_eq!(verdict(double), Err(Unverified::Malformed(name)));
            let bytes =
                |it: &mut HeaderMap, name| drop(it.insert(name, HeaderValue::from_bytes(b"\xff").unwrap()));
            assert_eq!(verdict(bytes), Err(Unverified::Malformed(name)));
        }
    }

    #[test]
    fn a_flood_of_signatures_is_not_looked_at() {
        let secret = shared();
        let (verifier, mut headers) = (Verifier::new([key(&secret)]), signed(&[secret]));
        let flood = format!("{}{}", "v1,AAAA ".repeat(MOST), headers[sign::SIGNATURE].to_str().unwrap());
        headers.insert(sign::SIGNATURE, flood.parse().unwrap());
        assert_eq!(verifier.verify(&headers, BODY, NOW), Err(Unverified::NoMatch));
    }

    #[test]
    fn keys_are_read_and_not_shown() {
        assert!(matches!(Key::parse(&pair().reveal()), Ok(Key(Kind::Ed25519(_)))));
        assert!(Key::parse("whpk_AAAA").is_err() && Key::parse("whpk_!").is_err());
        assert_eq!(format!("{:?}", Verifier::new([key(&pair())]).keys), "[Key::Ed25519(..)]");
    }

    fn flip(bytes: &[u8], bit: usize) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let at = bit / 8 % bytes.len();
        bytes[at] ^= 1 << (bit % 8);
        bytes
    }

    proptest! {
        #[test]
        fn a_bit_that_is_flipped_anywhere_is_noticed(
            hmac: bool, part in 0..4usize, bit in 0..10_000usize,
            id in "[a-zA-Z0-9_-]{1,40}", body in proptest::collection::vec(any::<u8>(), 1..200),
        ) {
            let secret = if hmac { shared() } else { pair() };
            // However far the time is off, the signature alone must tell.
            let verifier = Verifier::new([key(&secret)]).tolerance(Duration::MAX);
            let mut headers: HeaderMap = sign::sign(&[secret], &id, NOW, &body).unwrap().into_iter().collect();
            prop_assert_eq!(verifier.verify(&headers, &body, NOW), Ok(()));
            let Some(name) = [sign::ID, sign::TIMESTAMP, sign::SIGNATURE].get(part) else {
                prop_assert!(verifier.verify(&headers, &flip(&body, bit), NOW).is_err());
                return Ok(());
            };
            // What is no header at all never arrives.
            let Ok(value) = HeaderValue::from_bytes(&flip(headers[*name].as_bytes(), bit)) else { return Ok(()) };
            headers.insert(*name, value);
            prop_assert!(verifier.verify(&headers, &body, NOW).is_err(), "{:?}", headers);
        }
    }
}
