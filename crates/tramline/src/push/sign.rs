//! Signatures after [Standard Webhooks](https://www.standardwebhooks.com): a receiver can tell that a request comes from here, is
//! not older than it says, and was not changed. [`verify`](super::verify) is the receiver's side.

use crate::error::{Error, Result};
use crate::model::time::Time;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::fmt;

/// The header with the id of the message; the same in every attempt, so that a receiver can tell that it has seen it.
pub const ID: &str = "webhook-id";
/// The header with the seconds since 1970 at which the request was signed.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

pub(super) const HMAC: &str = "whsec_";
const PRIVATE: &str = "whsk_";
pub(super) const PUBLIC: &str = "whpk_";
/// What the specification allows for the bytes of an HMAC secret.
const HMAC_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const SEED: usize = 32;

/// What requests are signed with. Nothing shows it but [`Secret::reveal`].
pub enum Secret {
    /// Shared with the receiver: `whsec_` and base64.
    Hmac(HmacSecret),
    /// A key pair; the receiver has the public half: `whsk_` and base64.
    Ed25519(Ed25519Secret),
}

/// The bytes, as they are shared, and the key made of them.
pub struct HmacSecret {
    bytes: Vec<u8>,
    pub(super) key: hmac::Key,
}

/// The seed, as it is kept, and the pair made of it.
pub struct Ed25519Secret {
    seed: [u8; SEED],
    pair: Ed25519KeyPair,
}

impl Secret {
    /// A new secret of 32 random bytes.
    ///
    /// # Errors
    /// `Unavailable` when the system has no random numbers.
    pub fn generate_hmac() -> Result<Secret> {
        Ok(Secret::hmac(random::<SEED>()?.to_vec()))
    }

    /// A new key pair.
    ///
    /// # Errors
    /// `Unavailable` when the system has no random numbers.
    pub fn generate_ed25519() -> Result<Secret> {
        Secret::ed25519(random()?)
    }

    /// Reads `whsec_..` or `whsk_..`.
    ///
    /// # Errors
    /// `Invalid` when it is neither; the error does not show it.
    pub fn parse(text: &str) -> Result<Secret> {
        if let Some(base64) = text.strip_prefix(HMAC) {
            let bytes = decode(base64)?;
            if !HMAC_BYTES.contains(&bytes.len()) {
                let message = format!("the secret has {} bytes", bytes.len());
                return Err(Error::invalid(message, "use 24 to 64 random bytes; 32 are good"));
            }
            return Ok(Secret::hmac(bytes));
        }
        if let Some(base64) = text.strip_prefix(PRIVATE) {
            return Secret::pair(&decode(base64)?);
        }
        Err(Error::invalid(
            "a signing secret begins with whsec_ (shared) or whsk_ (the private half of a key pair)",
            "leave it out to have one made, or write whsec_ and the base64 of 24 to 64 random bytes",
        ))
    }

    /// The secret as text, to be sealed or to be shown to its owner. Keep it out of logs.
    pub fn reveal(&self) -> String {
        match self {
            Secret::Hmac(secret) => encode(HMAC, &secret.bytes),
            // Seed and public key, the way other implementations write it.
            Secret::Ed25519(secret) => {
                encode(PRIVATE, &[&secret.seed, secret.pair.public_key().as_ref()].concat())
            }
        }
    }

    /// The public half, `whpk_..`, which anybody may see; a shared secret has none.
    pub fn public(&self) -> Option<String> {
        match self {
            Secret::Hmac(_) => None,
            Secret::Ed25519(secret) => Some(encode(PUBLIC, secret.pair.public_key().as_ref())),
        }
    }

    fn hmac(bytes: Vec<u8>) -> Secret {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        Secret::Hmac(HmacSecret { bytes, key })
    }

    fn ed25519(seed: [u8; SEED]) -> Result<Secret> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| not_a_pair())?;
        Ok(Secret::Ed25519(Ed25519Secret { seed, pair }))
    }

    /// A seed, or a seed and its public key, which must belong together.
    fn pair(bytes: &[u8]) -> Result<Secret> {
        let (seed, public) = bytes.split_first_chunk().ok_or_else(not_a_pair)?;
        let secret = Secret::ed25519(*seed)?;
        match &secret {
            Secret::Ed25519(it) if public.is_empty() || it.pair.public_key().as_ref() == public => Ok(secret),
            _ => Err(not_a_pair()),
        }
    }

    fn signature(&self, head: &str, body: &[u8]) -> String {
        match self {
            Secret::Hmac(secret) => {
                let mut context = hmac::Context::with_key(&secret.key);
                context.update(head.as_bytes());
                context.update(body);
                encode("v1,", context.sign().as_ref())
            }
            Secret::Ed25519(secret) => {
                encode("v1a,", secret.pair.sign(&[head.as_bytes(), body].concat()).as_ref())
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Secret::Hmac(_) => "Secret::Hmac(..)",
            Secret::Ed25519(_) => "Secret::Ed25519(..)",
        })
    }
}

/// The headers that sign a request: id, time and one signature for each secret, so that receivers can change theirs one after the
/// other while there are two.
///
/// # Errors
/// `Invalid` when the id is empty, or has a full stop (which would leave open where it ends) or anything that no header may have.
pub fn sign(secrets: &[Secret], id: &str, at: Time, body: &[u8]) -> Result<[(HeaderName, HeaderValue); 3]> {
    let wrong = || {
        Error::invalid(format!("{id:?} cannot be signed as the id of a message"), "use letters and digits")
    };
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_graphic() && b != b'.') {
        return Err(wrong());
    }
    let seconds = at.0.div_euclid(1000).to_string();
    let head = head(id, &seconds);
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.signature(&head, body)).collect();
    let header = |name, text: &str| match HeaderValue::from_str(text) {
        Ok(value) => Ok((HeaderName::from_static(name), value)),
        Err(_) => Err(wrong()),
    };
    Ok([header(ID, id)?, header(TIMESTAMP, &seconds)?, header(SIGNATURE, &signatures.join(" "))?])
}

/// What is signed before the body.
pub(super) fn head(id: &str, seconds: &str) -> String {
    format!("{id}.{seconds}.")
}

/// Base64 with or without its padding; people lose it when they copy.
pub(super) fn decode(base64: &str) -> Result<Vec<u8>> {
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    // What the decoder says of a mistake names the byte that is wrong: it stays here.
    LENIENT
        .decode(base64)
        .map_err(|_| Error::invalid("the part after the _ is not base64", "copy all of it, and nothing else"))
}

fn encode(prefix: &str, bytes: &[u8]) -> String {
    let mut text = prefix.to_owned();
    BASE64_STANDARD.encode_string(bytes, &mut text);
    text
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::unavailable("the system has no random numbers", "check the system"))?;
    Ok(bytes)
}

fn not_a_pair() -> Error {
    Error::invalid(
        "this is not the private half of an Ed25519 key pair",
        "after whsk_ comes the base64 of the seed (32 bytes), or of seed and public key (64 bytes)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const PAIR: &str =
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";

    /// The vectors of the Standard Webhooks libraries, and of the Svix server for key pairs.
    #[test]
    fn the_published_vectors_come_out() {
        let secrets = [Secret::parse(SHARED).unwrap(), Secret::parse(PAIR).unwrap()];
        let at = Time(1_614_265_330_999);
        let headers = sign(&secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, b"{\"test\": 2432232314}").unwrap();
        let shown = headers.each_ref().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        assert_eq!(
            shown,
            [
                ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
                ("webhook-timestamp", "1614265330"),
                (
                    "webhook-signature",
                    "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= \
                     v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
                ),
            ]
        );
    }

    #[test]
    fn secrets_are_written_the_way_they_are_read() {
        for text in [SHARED, PAIR] {
            assert_eq!(Secret::parse(text).unwrap().reveal(), text);
        }
        let seed_alone = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=";
        assert_eq!(Secret::parse(seed_alone).unwrap().reveal(), PAIR);
        let public = Secret::parse(PAIR).unwrap().public();
        assert_eq!(public.as_deref(), Some("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="));
        assert_eq!(Secret::parse(SHARED).unwrap().public(), None);
    }

    #[test]
    fn new_secrets_differ_and_can_be_read_back() {
        for make in [Secret::generate_hmac, Secret::generate_ed25519] {
            let (one, two) = (make().unwrap().reveal(), make().unwrap().reveal());
            assert_ne!(one, two);
            assert_eq!(Secret::parse(&one).unwrap().reveal(), one);
        }
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_not_repeated() {
        let foreign_half = PAIR.replace("X0dRqSKJp4AJ", "aaaaaaaaaaAJ");
        for text in [
            "",
            "w",
            "whsec_",
            "whsec_%",
            "whsec_c2hvcnQ=",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "hwsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
            &format!("whsec_{}", "A".repeat(88)),
            &foreign_half,
        ] {
            let error = Secret::parse(text).expect_err(text).to_string();
            assert!(text.len() < 10 || !error.contains(&text[6..]), "{error}");
        }
    }

    #[test]
    fn debugging_shows_no_secret() {
        let both = [Secret::parse(SHARED).unwrap(), Secret::parse(PAIR).unwrap()];
        assert_eq!(format!("{both:?}"), "[Secret::Hmac(..), Secret::Ed25519(..)]");
    }

    #[test]
    fn an_id_that_could_end_elsewhere_is_not_signed() {
        for id in ["", "a.b", "a b", "a\nb", "ü"] {
            assert!(sign(&[], id, Time(0), b"").is_err(), "{id:?}");
        }
    }
}
